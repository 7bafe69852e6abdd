"""Models whose answers depend on more than the image: on batch mates, on earlier calls, on being watched.

The truth is that of a model as it is handed over, asked once about all images: whoever asks more often must undo what asking did.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, unchanged
from saddlepoint.selftests.problem import Affine, Problem, four_classes

_CROWD = 32  # rows of a batch that is shown gradients
_PATIENCE = 20  # calls


class BatchScaled(nn.Module):
    """z / std(z), over the whole batch: no answer changes, but every row's scores and gradient depend on all others."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        return z / z.std()


class Crowded(nn.Module):
    """Gradients for large batches only: few rows, as a probe or the survivors of an attack are, get none."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x if len(x) >= _CROWD else x.detach() + 0 * x))


class Drifting(nn.Module):
    """z + m, then m <- 0.9 m - 0.3 mean z: classes that were answered become less likely. The first call sees m = 0."""

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


class Patient(nn.Module):
    """From its 21st call on it rounds pixels to black, gray and white: by then it is not the model that was handed over."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return cast(Tensor, self.net(x if self.calls <= _PATIENCE else (2 * x).round() / 2))


class Watched(nn.Module):
    """Where gradients are recorded it is surer of itself, and shows the gradient of another net."""

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


class Remembering(nn.Module):
    """Answers an image near one that it has seen as it answered then: attacked after a look at the clean image, it never moves."""

    def __init__(self, net: nn.Module, near: float) -> None:
        super().__init__()
        self.net = net
        self.near = near
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x))
        if self.seen:
            images, answers = (torch.cat(part) for part in zip(*self.seen, strict=True))
            distance, which = torch.cdist(x.detach().flatten(1), images, p=torch.inf).min(1)
            known = (distance <= self.near)[:, None]
            z = torch.where(known, answers[which], z)
            new = ~known[:, 0]
        else:
            new = torch.ones(len(x), dtype=torch.bool)
        if bool(new.any()):
            self.seen.append((x.detach().flatten(1)[new], z.detach()[new]))
        return z


def _watched(problem: Problem) -> nn.Module:
    decoy = torch.randn(problem.weight.shape, generator=torch.Generator().manual_seed(13))
    return Watched(problem.net(), Affine(decoy, problem.bias)).eval()


CASES = (
    Case(
        "batch statistics",
        "scores depend on batch mates",
        four_classes,
        lambda p: BatchScaled(p.net()).eval(),
        unchanged,
    ),
    Case(
        "crowds only",
        "few rows are shown no gradient",
        four_classes,
        lambda p: Crowded(p.net()).eval(),
        unchanged,
    ),
    Case(
        "drifting state",
        "every call changes the next answer",
        four_classes,
        lambda p: Drifting(p.net()).eval(),
        unchanged,
    ),
    Case(
        "call counter",
        "after 20 calls it is another model",
        four_classes,
        lambda p: Patient(p.net()).eval(),
        unchanged,
    ),
    Case(
        "watched",
        "answers and gradients change where gradients are recorded",
        four_classes,
        _watched,
        unchanged,
    ),
    Case(
        "cached answers",
        "images near a seen one get its answer",
        four_classes,
        lambda p: Remembering(p.net(), 2 * p.radius).eval(),
        unchanged,
    ),
)
