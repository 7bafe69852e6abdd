"""Records the decisions and the class scores inside one call of a model, and may force decisions.

A decision is a comparison with at most one result per row, or a tensor that Python code reads as a
number. A site is a function at a source line. A forced site has the same result at every call, so
that all rows of a batch take the same path and no row leaves early.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.audits.target.instrument import second_argument
from saddlepoint.audits.target.rounding import lacks_arithmetic
from saddlepoint.audits.target.transforms import outside_transforms

_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = Path(__file__).parents[2]
_CALLERS = (
    _TORCH,
    *(str(_PACKAGE / part) for part in ("audits", "defenses", "gradients", "attacks")),
    str(_PACKAGE / "evaluation"),
)
_COMPARISONS = {"gt": 1, "ge": 1, "lt": -1, "le": -1, "eq": 0, "ne": 0, "isclose": 0}
_SWAPPED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}
_TRUTHS = ("equal", "allclose")  # functions that return a bool of Python
_CASTS = ("float", "int", "index")  # they must return exactly this type
_READS = ("item", "tolist")
NUMBERS = ("item", *_CASTS)
_CHOICES = ("argmax", "argmin", "topk", "mode", "argsort", "sort", "max", "min")
_LARGE = 1e9  # beyond any threshold


class Site(NamedTuple):
    """A function at a source line."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Scores(NamedTuple):
    """Class scores of some rows."""

    site: Site
    time: int
    logits: Tensor  # [rows, C]


class Decision(NamedTuple):
    """The result of a comparison."""

    site: Site
    time: int
    result: tuple[bool, ...]  # of each row; empty for a number
    lead: Tensor | None  # [rows] positive where the result is true; None: not a float comparison


class TooManyOperations(RuntimeError):  # noqa: N818
    """A forced decision made a loop run for too long."""


@dataclass
class DecisionRecord(TorchFunctionMode):
    """Decisions, class scores and operations of one call.

    Args:
        rows: number of images of the call.
        classes: number of classes.
        forced: the result of each forced site; default none.
        limit: operations after which the call is ended with an error; default no limit.
    """

    rows: int
    classes: int
    forced: Mapping[Site, bool] = field(default_factory=dict)
    limit: int | None = None
    scores: list[Scores] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    images: Tensor | None = None  # of the call, set by the caller
    output: Tensor | None = None  # of the call, set by the caller
    chooses: bool = False  # it uses indices of a highest or lowest value

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites with decisions: comparisons, then numbers, in the order of their first call."""
        found = dict.fromkeys(decision.site for decision in self.decisions)
        return tuple(sorted(found, key=lambda site: site.function in NUMBERS))

    @property
    def path(self) -> tuple[object, ...]:
        """What identifies the path of a call: its operations and the results of its decisions."""
        return (*self.operations, *(decision.result for decision in self.decisions))

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        self.operations.append(name)
        if self.limit is not None and len(self.operations) > self.limit:
            raise TooManyOperations
        if name in _COMPARISONS and isinstance(out, Tensor):
            return self._compared(name, args, kwargs, out)
        if name in _TRUTHS:
            return self.decide(name, out, None)
        if name in _CASTS and args[0].numel() == 1:
            return self._read_number(name, out)
        if name in _READS:
            return self._read(args[0], out)
        self.chooses |= name in _CHOICES and _has_indices(out)
        self._keep_scores(name, out)
        return out

    def decide(self, function: str, result: bool, lead: Tensor | None) -> bool:
        """Record the result of one comparison; returns the forced result if there is one."""
        site = caller(function)
        self.decisions.append(Decision(site, len(self.operations), (result,), lead))
        return self.forced.get(site, result)

    def _compared(self, name: str, args: Any, kwargs: Any, out: Tensor) -> Tensor:
        if not 0 < out.numel() <= self.rows:
            return out
        site = caller(name)
        first = args[0]
        sign = _COMPARISONS[name]
        lead = None
        if sign and first.is_floating_point():
            lead = (sign * (first - second_argument(args, kwargs))).reshape(-1)
        result = tuple(out.reshape(-1).tolist())
        self.decisions.append(Decision(site, len(self.operations), result, lead))
        return torch.full_like(out, self.forced[site]) if site in self.forced else out

    def _read_number(self, name: str, out: Any) -> Any:
        """The number that Python code reads.

        A forced integer is zero, or differs from the one before; both are valid classes.
        """
        site = caller(name)
        count = sum(decision.site == site for decision in self.decisions)
        self.decisions.append(Decision(site, len(self.operations), (), None))
        if site not in self.forced or isinstance(out, bool):
            return out
        high = self.forced[site]
        if isinstance(out, float):
            return _LARGE if high else -_LARGE
        return 0 if high else count % max(self.classes, 2)

    def _read(self, tensor: Tensor, out: Any) -> Any:
        """Numbers with recorded comparisons, unless their values are forced."""
        if isinstance(out, list):
            if tensor.ndim != 1:
                return out
            pairs = zip(tensor.unbind(), out, strict=True)
            return [self._read(entry, number) for entry, number in pairs]
        number = self._read_number("item", out)
        if number is not out or isinstance(out, bool):
            return number
        if isinstance(out, float):
            return ReadFloat.of(out, tensor, self)
        return ReadInteger.of(out, self) if isinstance(out, int) else out

    def _keep_scores(self, name: str, out: Any) -> None:
        if not (isinstance(out, Tensor) and out.is_floating_point() and self.classes):
            return
        if lacks_arithmetic(out.dtype):  # scores are compared
            return
        single = out.ndim == 1 and len(out) == self.classes
        batched = out.ndim == 2 and out.shape[1] == self.classes and 0 < len(out) <= self.rows
        if single or batched:
            # A later operation may change the tensor in place.
            kept = out.clone().reshape(-1, self.classes)
            self.scores.append(Scores(caller(name), len(self.operations), kept))


class ReadFloat(float):
    """A number that was read from a tensor; its comparisons are recorded."""

    tensor: Tensor
    record: DecisionRecord

    @classmethod
    def of(cls, value: float, tensor: Tensor, record: DecisionRecord) -> ReadFloat:
        """The number `value` that was read from `tensor`."""
        number = cls(value)
        number.tensor = tensor.reshape(())
        number.record = record
        return number


class ReadInteger(int):
    """An integer that was read from a tensor; its comparisons are recorded."""

    record: DecisionRecord

    @classmethod
    def of(cls, value: int, record: DecisionRecord) -> ReadInteger:
        """The integer `value`."""
        number = cls(value)
        number.record = record
        return number


def caller(function: str) -> Site:
    """The site of a function that the code of the model called, directly or by a torch layer."""
    for file, line in _frames():
        if not file.startswith(_CALLERS):
            return Site(Path(file).name, line, function)
    return Site("model", 0, function)


def _frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def _has_indices(out: Any) -> bool:
    values = out if isinstance(out, tuple) else (out,)
    return any(isinstance(v, Tensor) and v.dtype == torch.long for v in values)


def _compare_float(function: str) -> Any:
    plain = getattr(float, f"__{function}__")

    def compare(self: ReadFloat, other: Any) -> Any:
        result = plain(self, other)
        if not isinstance(result, bool):
            return result
        sign = _COMPARISONS[function]
        difference = self.tensor - _tensor_of(other)
        return self.record.decide(function, result, sign * difference.reshape(1) if sign else None)

    return compare


def _compare_integer(function: str) -> Any:
    plain = getattr(int, f"__{function}__")

    def compare(self: ReadInteger, other: Any) -> Any:
        result = plain(self, other)
        return self.record.decide(function, result, None) if isinstance(result, bool) else result

    return compare


def _combine_float(function: str) -> Any:
    plain = getattr(float, f"__{function}__")
    combine = getattr(Tensor, f"__{function}__")

    def combined(self: ReadFloat, *other: Any) -> Any:
        result = plain(self, *other)
        if not isinstance(result, float):
            return result
        tensor = combine(self.tensor, *map(_tensor_of, other))
        return ReadFloat.of(result, tensor, self.record)

    return combined


def _tensor_of(number: Any) -> Any:
    return number.tensor if isinstance(number, ReadFloat) else float(number)


for _function in _SWAPPED:
    setattr(ReadFloat, f"__{_function}__", _compare_float(_function))
    setattr(ReadInteger, f"__{_function}__", _compare_integer(_function))
for _function in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg"):
    setattr(ReadFloat, f"__{_function}__", _combine_float(_function))
ReadFloat.__hash__ = float.__hash__  # type: ignore[method-assign]
ReadInteger.__hash__ = int.__hash__  # type: ignore[method-assign]
