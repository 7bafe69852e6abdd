"""Models with outputs that depend on the batch, on earlier calls, or on gradient recording.

The truth is that of the model as received, queried once on all images. An evaluator that queries
more often must undo the effect of its queries.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, linear_truth
from saddlepoint.selftests.problem import Affine, Problem, four_classes

_MIN_BATCH = 32  # smallest batch that has gradients
_CALLS_BEFORE_CHANGE = 20


class BatchScaled(nn.Module):
    """z / std(z) over the whole batch.

    Predictions do not change, but scores and gradients of a row depend on all other rows.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        return z / z.std()


class LargeBatchGradient(nn.Module):
    """Gradients for large batches only.

    Small batches, such as those of a probe or the remaining examples of an attack, have none.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x if len(x) >= _MIN_BATCH else x.detach() + 0 * x))


class Drifting(nn.Module):
    """Returns z + m, then sets m <- 0.9 m - 0.3 mean z; initially m = 0.

    Classes with high logits in earlier calls become less likely.
    """

    shift: Tensor

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        shift = self.shift
        self.shift = 0.9 * shift - 0.3 * z.detach().mean(0)
        return z + shift


class ChangesAfterCalls(nn.Module):
    """From its 21st call on, rounds pixels to 0, 1/2 and 1: it is then a different model."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        unchanged = self.calls <= _CALLS_BEFORE_CHANGE
        return cast(Tensor, self.net(x if unchanged else (2 * x).round() / 2))


class DecoyGradient(nn.Module):
    """While gradients are recorded, triples its logits and has the gradient of another net."""

    def __init__(self, net: nn.Module, decoy: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.decoy = decoy

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        if not (torch.is_grad_enabled() and x.requires_grad):
            return z
        other = cast(Tensor, self.decoy(x))
        return 3 * z.detach() + other - other.detach()


class CachedOutputs(nn.Module):
    """Returns the cached output of an earlier image if one is near.

    After a query of the clean image, no perturbation changes the output.
    """

    def __init__(self, net: nn.Module, near: float) -> None:
        super().__init__()
        self.net = net
        self.near = near  # largest Linf distance
        self.cache: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        if self.cache:
            images, outputs = (torch.cat(part) for part in zip(*self.cache, strict=True))
            distance, nearest = torch.cdist(x.detach().flatten(1), images, p=torch.inf).min(1)
            known = (distance <= self.near)[:, None]
            z = torch.where(known, outputs[nearest], z)
            new = ~known[:, 0]
        else:
            new = torch.ones(len(x), dtype=torch.bool)
        if bool(new.any()):
            self.cache.append((x.detach().flatten(1)[new], z.detach()[new]))
        return z


def _decoy_gradient(problem: Problem) -> nn.Module:
    decoy = torch.randn(problem.weight.shape, generator=torch.Generator().manual_seed(13))
    return DecoyGradient(problem.net(), Affine(decoy, problem.bias)).eval()


CASES = (
    Case(
        "batch statistics",
        "scores depend on the rest of the batch",
        four_classes,
        lambda p: BatchScaled(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "crowds only",
        "small batches have no gradient",
        four_classes,
        lambda p: LargeBatchGradient(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "drifting state",
        "every call changes the output of the next",
        four_classes,
        lambda p: Drifting(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "call counter",
        "after 20 calls it is a different model",
        four_classes,
        lambda p: ChangesAfterCalls(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "watched",
        "outputs and gradients change while gradients are recorded",
        four_classes,
        _decoy_gradient,
        linear_truth,
    ),
    Case(
        "cached answers",
        "images near an earlier one get its output",
        four_classes,
        lambda p: CachedOutputs(p.net(), 2 * p.radius).eval(),
        linear_truth,
    ),
)
