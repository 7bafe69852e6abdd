"""Every wrapper of a defense or an oracle forwards everything that it does not document."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.problems import Static, oracle, smooth, uniform
from torch import Tensor, nn

from saddlepoint.attacks.history import History
from saddlepoint.attacks.oracle import Oracle, OracleWrapper
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.target.branches import Branch
from saddlepoint.audits.target.exits import HiddenExits
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View
from saddlepoint.evaluation import BatchControl, Mask
from saddlepoint.rng import Keys

THIS_FILE = "tests/contracts/test_wrappers.py"
PACKAGES = (
    "saddlepoint.attacks",
    "saddlepoint.defenses",
    "saddlepoint.evaluation",
    "saddlepoint.games",
    "saddlepoint.audits.target",
)
N = 6
CLASSES = 4
X = uniform(0, N, CLASSES)
IDS = torch.arange(N)
ROWS = torch.tensor([4, 1, 3])


def import_all(package: str) -> None:
    """Import a package and all its modules, as far as they can be imported."""
    with suppress(ImportError):
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}.", onerror=lambda _: None):
            with suppress(ImportError):
                importlib.import_module(module.name)


def subclasses(base: type) -> Iterator[type]:
    """All subclasses of a class that are defined in the package."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith("saddlepoint."):
            yield cls
        yield from subclasses(cls)


def path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def found(base: type) -> list[type]:
    for package in PACKAGES:
        import_all(package)
    return sorted(set(subclasses(base)), key=path)


class PerRow(Defense):
    """A defense with two exits and with parameters per row, which adapts to its batch."""

    def __init__(self, bias: Tensor, *, adapted: bool = False, **declarations: Any) -> None:
        self.bias = bias
        self.adapted = adapted
        self.declarations = declarations
        for name, value in declarations.items():
            setattr(self, name, value)

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return PerRow(self.bias + x.mean(0), adapted=True, **self.declarations)

    def restrict(self, rows: Tensor) -> Defense:
        return PerRow(self.bias[rows], adapted=self.adapted, **self.declarations)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        # Elementwise, so that rounding does not depend on the other rows.
        noise = 0.01 * ctx.randn_like(x)
        views = [View(f"exit/{k}", k * x + noise + self.bias) for k in (1, 2)]
        return Trace(tuple(views))


# A value of each declaration that differs from the default.
DECLARATIONS: dict[str, object] = {
    "coupled": True,
    "random": True,
    "memory": "batch",
    "grants": "score",
    "rejects": True,
    "static": nn.Identity(),
    "reads": frozenset({"exit/2"}),
}


@dataclass(frozen=True)
class Case:
    """How a wrapper is built, and what differs from the inner defense, as its docstring says."""

    build: Callable[[Any, Defense], DefenseWrapper] = lambda cls, inner: cls(inner)
    differs: tuple[str, ...] = ()  # declarations
    keeps_object: bool = False  # `adapt` and `restrict` return the wrapper itself


WRAPPERS: dict[str, Case] = {
    "saddlepoint.defenses.decoupled.AmongBatch": Case(
        lambda cls, inner: cls(inner, X), differs=("coupled",)
    ),
    "saddlepoint.evaluation.row_by_row._Uncoupled": Case(differs=("coupled",)),
    "saddlepoint.evaluation.batch_control.PartialControl": Case(
        lambda cls, inner: cls(inner, IDS % 2 == 0, X.flip(0), BatchControl(0.5))
    ),
    "saddlepoint.evaluation.masks.MaskedPixels": Case(
        lambda cls, inner: cls(inner, Mask.of(torch.arange(CLASSES) % 2), X.flip(0))
    ),
    "saddlepoint.evaluation.online.OnlineDefense": Case(differs=("coupled",), keeps_object=True),
    "saddlepoint.evaluation.targeted_goal.TowardClass": Case(
        lambda cls, inner: cls(inner, 1), differs=("reads", "static")
    ),
    "saddlepoint.games.exit_views.NumberedExits": Case(differs=("reads",)),
    "saddlepoint.games.exit_views.MeanOfExits": Case(
        lambda cls, inner: cls(inner, (1, 2), latent=(1,)), differs=("random", "reads")
    ),
    "saddlepoint.audits.target.answer.AnswerView": Case(differs=("reads",)),
    "saddlepoint.audits.target.branches.ForcedBranch": Case(
        lambda cls, inner: cls(inner, Branch(0, 0), IDS % CLASSES)
    ),
    "saddlepoint.audits.target.exits.ExposedExits": Case(
        lambda cls, inner: cls(inner, HiddenExits((), (), (), True), IDS % CLASSES),
        differs=("grants", "reads"),
    ),
    "saddlepoint.audits.target.pixel_grid.SnappedInputs": Case(
        lambda cls, inner: cls(inner, X, Linf(1.0))
    ),
    "saddlepoint.audits.target.saturation.SoftenedDefense": Case(
        lambda cls, inner: cls(inner, 2.0)
    ),
    "saddlepoint.audits.target.surrogates.SurrogateOperations": Case(
        lambda cls, inner: cls(inner, ())
    ),
    "saddlepoint.audits.target.wrappers.LogProbabilities": Case(),
    "saddlepoint.audits.target.wrappers.NoGradient": Case(differs=("grants",)),
    "saddlepoint.audits.target.wrappers.TargetWrapper": Case(),
    "saddlepoint.audits.target.wrappers.ValueWithoutGrad": Case(),
}

ORACLES: dict[str, Callable[[Any, Oracle], OracleWrapper]] = {
    "saddlepoint.attacks.early_stopping.StopAtSuccess": lambda cls, inner: cls.of(
        inner, X, Linf(1.0)
    ),
    "saddlepoint.attacks.history.RecordingOracle": lambda cls, inner: cls(
        inner, History(N), "objective", Linf(1.0).around(X)
    ),
}


def case_of(cls: type) -> Case:
    if path(cls) not in WRAPPERS:
        pytest.fail(f"{path(cls)} has no entry. Add one to WRAPPERS in {THIS_FILE}.")
    return WRAPPERS[path(cls)]


def wrapped(cls: type, inner: Defense) -> DefenseWrapper:
    return case_of(cls).build(cls, inner)


def inner_defense(**declarations: object) -> PerRow:
    return PerRow(uniform(1, N, CLASSES), **declarations)


def context(rows: Tensor = IDS) -> Context:
    return Context(Keys.of(0, rows))


each_wrapper = pytest.mark.parametrize("cls", found(DefenseWrapper), ids=path)
each_oracle = pytest.mark.parametrize("cls", found(OracleWrapper), ids=path)


def test_the_tables_name_existing_classes() -> None:
    for base, table in ((DefenseWrapper, WRAPPERS), (OracleWrapper, ORACLES)):
        known = {path(cls) for cls in found(base)}
        unknown = [name for name in table if name not in known]
        assert not unknown, f"remove {unknown} from {THIS_FILE}"


def test_all_declarations_are_checked() -> None:
    assert set(DECLARATIONS) == set(Defense.__annotations__)


@each_wrapper
@pytest.mark.parametrize("name", DECLARATIONS)
def test_a_declaration_is_that_of_the_inner_defense_unless_documented(cls: type, name: str) -> None:
    case = case_of(cls)
    if name in case.differs:
        assert f"`{name}`" in (cls.__doc__ or ""), f"the docstring of {path(cls)} omits `{name}`"
        return
    for inner in (inner_defense(), inner_defense(**{name: DECLARATIONS[name]})):
        assert getattr(wrapped(cls, inner), name) == getattr(inner, name)


def assert_same_trace(first: Trace, second: Trace) -> None:
    assert first.names == second.names
    assert torch.equal(first.logits, second.logits)


@each_wrapper
def test_restrict_then_trace_is_trace_then_selection_of_rows(cls: type) -> None:
    wrapper = wrapped(cls, inner_defense())
    if case_of(cls).keeps_object:
        assert "`restrict`" in (cls.__doc__ or "")
        assert wrapper.restrict(ROWS) is wrapper
        return
    whole = wrapper.trace(X, context())
    restricted = wrapper.restrict(ROWS)
    part = restricted.trace(X[ROWS], context(ROWS))
    selected = Trace(tuple(View(view.name, view.logits[ROWS]) for view in whole.views))
    assert_same_trace(part, selected)
    answer = wrapper.answer(whole, context())
    assert torch.equal(restricted.answer(part, context(ROWS)), answer[ROWS])


@each_wrapper
def test_adapt_wraps_the_adapted_inner_defense(cls: type) -> None:
    inner = inner_defense(memory="batch")
    wrapper = wrapped(cls, inner)
    adapted = wrapper.adapt(X, context())
    if case_of(cls).keeps_object:
        assert "`adapt`" in (cls.__doc__ or "")
        assert adapted is wrapper
        return
    assert type(adapted) is cls
    assert isinstance(adapted.inner, PerRow)
    assert adapted.inner.adapted
    assert not inner.adapted
    expected = wrapped(cls, adapted.inner).trace(X, context())
    assert_same_trace(adapted.trace(X, context()), expected)


def oracle_wrapper(cls: type, inner: Oracle) -> OracleWrapper:
    if path(cls) not in ORACLES:
        pytest.fail(f"{path(cls)} has no entry. Add one to ORACLES in {THIS_FILE}.")
    return ORACLES[path(cls)](cls, inner)


def plain_oracle() -> Oracle:
    """An oracle that classifies all points of the test correctly, with a query budget."""
    net = smooth(3, inputs=CLASSES)
    return oracle(Static(net), net(X).argmax(1), limit=50)


METHODS: dict[str, Callable[[Any], Any]] = {
    "__len__": len,
    "__getitem__": lambda o: o[ROWS].score(X[ROWS] + 1e-6),
    "coupled": lambda o: o.coupled,
    "left": lambda o: o.left(),
    "allowance": lambda o: o.allowance(),
    "decide": lambda o: o.decide(X + 1e-6),
    "score": lambda o: o.score(X + 1e-6),
    "gradient": lambda o: o.gradient(X + 1e-6),
    "class_margins": lambda o: o.class_margins(X + 1e-6),
}


def test_all_methods_of_an_oracle_are_checked() -> None:
    special = ("__len__", "__getitem__")
    public = {name for name in vars(OracleWrapper) if not name.startswith("_") or name in special}
    assert set(METHODS) == public - set(OracleWrapper.__annotations__)


def flattened(value: Any) -> list[Any]:
    """The tensors and numbers inside nested tuples."""
    if isinstance(value, tuple):
        return [part for item in value for part in flattened(item)]
    return [value.tolist() if isinstance(value, Tensor) else value]


@each_oracle
@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_an_oracle_wrapper_forwards(cls: type, name: str) -> None:
    plain = plain_oracle()
    inner = plain_oracle()
    wrapper = oracle_wrapper(cls, inner)
    for call in (METHODS[name], METHODS["left"]):
        assert flattened(call(wrapper)) == flattened(call(plain))
    assert torch.equal(inner.meter.forward, plain.meter.forward)
    assert torch.equal(inner.meter.backward, plain.meter.backward)


@each_oracle
def test_some_rows_of_an_oracle_wrapper_have_the_same_type(cls: type) -> None:
    assert type(oracle_wrapper(cls, plain_oracle())[ROWS]) is cls
