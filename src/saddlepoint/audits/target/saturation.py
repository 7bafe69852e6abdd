"""Softmax functions inside a target that are saturated, and attacks with softer gradients.

A saturated softmax selects one of several entries, such as stored patterns. Its gradient shows the
selected entry only. The same softmax with a higher temperature shows the others, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.attacks.best import AttackResult
from saddlepoint.audits.target.transforms import outside_transforms
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace
from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.gradients.rule import straight_through

_SATURATED = 0.95  # of the probability, in the median over rows
_LEAST_ENTRIES = 4


class _Softmax(TorchFunctionMode):
    """Calls `seen` with scores, dimension and result of every softmax, and returns its result."""

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if getattr(func, "__name__", "") != "softmax" or not isinstance(args[0], Tensor):
            return out
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return self.seen(args[0], dim if isinstance(dim, int) else -1, out)

    def seen(self, scores: Tensor, dim: int, out: Tensor) -> Tensor:  # noqa: ARG002
        return out


def _is_saturated(out: Tensor, dim: int) -> bool:
    return out.shape[dim] >= _LEAST_ENTRIES and float(out.detach().amax(dim).median()) > _SATURATED


class _Record(_Softmax):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.gaps: list[float] = []

    def seen(self, scores: Tensor, dim: int, out: Tensor) -> Tensor:
        prediction = out.ndim == 2 and out.shape[1] == self.classes
        if not prediction and _is_saturated(out, dim):
            first, second = scores.topk(2, dim=dim).values.unbind(dim)
            self.gaps.append(float((first - second).median()))
        return out


class _Soften(_Softmax):
    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def seen(self, scores: Tensor, dim: int, out: Tensor) -> Tensor:
        recording = torch.is_grad_enabled() and scores.requires_grad
        if not (recording and _is_saturated(out, dim)):
            return out
        with torch._C.DisableTorchFunction():
            soft = (scores / self.temperature).softmax(dim).to(out)
            return straight_through(soft, out.detach())


def saturation(defense: Defense, x: Tensor, ctx: Context, classes: int) -> float | None:
    """The median lead of the highest score of saturated softmax functions; None without any.

    Args:
        defense: the target.
        x: images, [N, ...].
        ctx: the context of a call with these images.
        classes: number of classes; a softmax over classes is the prediction.
    """
    record = _Record(classes)
    with torch.no_grad(), record:
        defense.trace(x, ctx)
    gaps = sorted(record.gaps)
    return gaps[len(gaps) // 2] if gaps else None


class SoftenedDefense(DefenseWrapper):
    """The same outputs, with gradients of saturated softmax functions at a higher temperature."""

    replaces_views: ClassVar[bool] = False

    def __init__(self, inner: Defense, temperature: float) -> None:
        super().__init__(inner)
        self.temperature = temperature

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:  # noqa: ARG002
        return SoftenedDefense(inner, self.temperature)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with _Soften(self.temperature):
            return self.inner.trace(x, ctx)


@dataclass(frozen=True)
class AgainstSoftened(AdversaryWrapper):
    """The adversary with gradients of softmax functions at a higher temperature."""

    temperature: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-soft"

    def single_run(self) -> Adversary | None:
        inner = self.adversary.single_run()
        return None if inner is None else AgainstSoftened(inner, self.temperature)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.adversary.move(context, SoftenedDefense(defense, self.temperature), x, y)
