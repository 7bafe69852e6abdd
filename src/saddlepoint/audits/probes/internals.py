"""What goes on inside a call: optimization, solves, and what it all costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.probes.probe_target import ProbeTarget, alike, gap
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, observed, present, unmeasured
from saddlepoint.audits.target.admission import asking
from saddlepoint.defenses import Context
from saddlepoint.gradients import Backprop

_DEAR = 1.5  # times the static net
_FAR = 0.1  # a relative residual that no tolerance explains


def inside(subject: ProbeTarget) -> Iterator[Trait]:
    """Test-time autograd, solver residuals, cost."""
    calls = _Differentiations()
    operations = _Operations()
    with torch.no_grad(), operations, calls:
        subject.fresh().query()
    yield observed(
        TraitName.OPTIMIZES, calls.count > 0, 1, f"one call differentiates {calls.count} times while it answers",
        "no gradient is taken while it answers",
    )  # fmt: skip
    yield _settled(subject)
    yield _cost(subject, operations.total)
    yield _adapts(subject)
    yield _differentiable(subject)


def _adapts(subject: ProbeTarget) -> Trait:
    """Is it another defense once it has met the images?"""
    name = TraitName.ADAPTS
    n = len(subject)
    declared = subject.learns if subject.declares else None
    with torch.no_grad():
        before = subject.look()
        after = subject.answer if subject.learns else _adapted(subject)
    return observed(
        name, not alike(before, after), n, f"once it has met the images: {gap(before, after)}",
        "once it has met the images it answers as before", declared=declared,
    )  # fmt: skip


def _adapted(subject: ProbeTarget) -> Tensor:
    """The answer after `adapt`, with the coins that one without it meets; who declares to learn has been asked, and may be dear."""
    with asking(subject.kind, subject.x):
        became = subject.defense.adapt(subject.x.clone(), Context(subject.keys()))
    return replace(subject, defense=became).look()


def _differentiable(subject: ProbeTarget) -> Trait:
    """Does a gradient through learning differ from one that takes what is learned for a constant?"""
    name = TraitName.ADAPTS_DIFFERENTIABLY
    objective = AttackObjective([subject.defense], subject.y, margin)
    if not subject.learns or subject.defense.grants != "gradient":
        return absent(name, 1, "it does not learn, or gives no gradients")
    slope = Backprop().value_and_grad
    keys = subject.keys()
    try:
        through = slope(replace(objective, respond=True), subject.x, keys).grad
    except (ValueError, RuntimeError, TypeError) as error:
        return absent(name, 1, f"no gradient comes through ({str(error).splitlines()[0]})")
    with torch.no_grad():
        became = subject.defense.adapt(subject.x, Context(keys))
    constant = slope(replace(objective, defenses=[became]), subject.x, keys).grad
    there = bool(through.isfinite().all()) and not torch.allclose(
        through, constant, rtol=1e-4, atol=1e-8
    )
    return observed(
        name,
        there,
        len(subject),
        "the gradient through its learning is another one",
        "learning adds nothing to the gradient",
    )


def _settled(subject: ProbeTarget) -> Trait:
    """How far from a fixed point do solves end?"""
    name = TraitName.SOLVER_RESIDUAL
    _, ctx = subject.views()
    solve_info = [ending.residual for solves in ctx.solve_info.values() for ending in solves]
    if not solve_info:
        return unmeasured(name, "no solve is named")
    worst = torch.stack(solve_info).amax(0)
    far = int((worst > _FAR).sum())
    sites = tuple(sorted(ctx.solve_info))
    amount = float(worst.median())
    evidence = f"solves end with a relative residual of {amount:.2g} (median), {far} of {len(worst)} above {_FAR:g}"
    if far:
        return present(name, evidence, places=sites, amount=amount)
    return absent(name, len(worst), evidence, places=sites, amount=amount)


def _cost(subject: ProbeTarget, whole: int) -> Trait:
    """Multiplications and additions of one answer, counted in the products of matrices and the convolutions that it makes."""
    name = TraitName.EXPENSIVE
    n = len(subject)
    static = subject.defense.static
    if static is None or not subject.declares:
        return unmeasured(
            name, f"{whole / n:.3g} operations per image; there is no static net to compare with"
        )
    counter = _Operations()
    with torch.no_grad(), counter:
        static(subject.x)
    plain = counter.total
    if not plain:
        return unmeasured(
            name, f"{whole / n:.3g} operations per image; those of the static net are not counted"
        )
    times = whole / plain
    evidence = f"one answer takes {times:.3g} times the operations of its static net ({plain / n:.3g} per image)"
    return (
        present(name, evidence, amount=times)
        if times > _DEAR
        else absent(name, n, evidence, amount=times)
    )


class _Differentiations(TorchFunctionMode):
    """Counts requests for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what torch knows about the cost of its kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out
