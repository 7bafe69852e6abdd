"""Gradients that are lost in plain code: no layer and no named step contains the operation.

Images have 32 x 32 pixels, too many for a search without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.selftests.case import Case, Truth, linear_truth, truth_after
from saddlepoint.selftests.problem import Problem, four_classes, left, relabeled

Pixelwise = Callable[[Tensor], Tensor]
_LEVELS = 8
_THRESHOLD = 0.45
_BOUNDARIES = torch.linspace(0.05, 0.95, _LEVELS)
_TABLE = (torch.arange(_LEVELS + 1) / _LEVELS) ** 1.2


class InlineNet(nn.Module):
    """z = W f(x) + b in one forward pass without submodules, for a function f of each pixel."""

    def __init__(self, problem: Problem, pixelwise: Pixelwise) -> None:
        super().__init__()
        self.problem = problem
        self.pixelwise = pixelwise
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return _linear(self.problem, self.pixelwise(x))


def threshold(x: Tensor) -> Tensor:
    """1 above a threshold, else 0."""
    return (x > _THRESHOLD).to(x.dtype)


def without_remainder(x: Tensor) -> Tensor:
    """The largest multiple of 1/8 below x; both terms have the same gradient."""
    return x - x % (1 / _LEVELS)


def selected(x: Tensor) -> Tensor:
    """One of two numbers, selected by a threshold."""
    return torch.where(x > _THRESHOLD, 0.8, 0.1).to(x.dtype)


def tabulated(x: Tensor) -> Tensor:
    """The entry of a table for the interval that contains x."""
    return _TABLE.to(x)[torch.bucketize(x, _BOUNDARIES.to(x))]


def outside_torch(x: Tensor) -> Tensor:
    """A contrast change by numpy."""
    return torch.from_numpy(0.05 + 0.9 * x.detach().numpy())


class _NoBackward(torch.autograd.Function):
    """The identity, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> Tensor:  # noqa: ARG004
        return 0 * cotangent[0]


def half_without_backward(x: Tensor) -> Tensor:
    """x; every other column passes a function with a gradient of zero."""
    keeps = _even_columns(x)
    dropped = cast(Tensor, _NoBackward.apply(x))  # type: ignore[no-untyped-call]
    return keeps * x + (1 - keeps) * dropped


class ScaledTeacher(nn.Module):
    """Logits of a student and a teacher, divided by one positive number for the whole batch.

    The teacher, which classifies the odd columns, runs under no_grad. The number depends on all
    images and changes no prediction.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.problem = problem
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + x.flatten(1).std(0, correction=0).mean()
        student = _linear(self.problem, _even_columns(x) * x)
        with torch.no_grad():
            weight = self.problem.weight.to(x)
            teacher = ((1 - _even_columns(x)) * x).flatten(1) @ weight.T
        return (student + teacher) / scale


class OneNamedStep(Defense):
    """Rounds even columns in a named step; odd columns are detached without a name."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        rounded = ctx.through("round", _round, x)
        keeps = _even_columns(x)
        mixed = keeps * rounded + (1 - keeps) * x.detach()
        return Trace((View("final", _linear(self.problem, mixed)),))


def _round(x: Tensor) -> Tensor:
    return (x * 255).round() / 255


def _even_columns(x: Tensor) -> Tensor:
    return ((torch.arange(x.shape[-1]) + 1) % 2).to(x)


def _linear(problem: Problem, x: Tensor) -> Tensor:
    return nn.functional.linear(x.flatten(1), problem.weight.to(x), problem.bias.to(x))


def _problem() -> Problem:
    return four_classes(60, 0.005, 32)


def _one_named_step_truth(problem: Problem) -> Truth:
    shape = problem.x.shape
    keeps = _even_columns(problem.x).double().expand(shape[1:]).flatten()
    low, high = (keeps * _round(side) + (1 - keeps) * side for side in problem.box())
    return Truth.of(left(problem, low, high))


def _inline(name: str, why: str, pixelwise: Pixelwise) -> Case:
    """A case of a net behind a monotone function of each pixel."""
    return Case(
        name,
        why,
        lambda: relabeled(_problem(), InlineNet(_problem(), pixelwise)),
        lambda p: InlineNet(p, pixelwise),
        truth_after(pixelwise),
    )


CASES = (
    _inline("inline threshold", "a comparison is cast to numbers in the forward pass", threshold),
    _inline(
        "inline remainder", "a number minus its remainder has a gradient of zero", without_remainder
    ),
    _inline("inline selection", "torch.where selects one of two constants", selected),
    _inline("inline table", "an index that is counted selects an entry of a table", tabulated),
    _inline("detour by numpy", "pixels leave torch and return as new tensors", outside_torch),
    _inline(
        "half without backward",
        "a custom function has no gradient in every other column",
        half_without_backward,
    ),
    Case(
        "teacher under no_grad",
        "a part of the logits has no gradient, and images of a batch influence each other",
        _problem,
        ScaledTeacher,
        linear_truth,
    ),
    Case(
        "one named step",
        "one step of a defense has a name, another one loses gradients without a name",
        _problem,
        OneNamedStep,
        _one_named_step_truth,
    ),
)
