"""Who tells natural from adversarial by the logits alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, cast

from torch import Tensor, nn


class Judgment(NamedTuple):
    """What a discriminator says of logits."""

    natural: Tensor  # [N] log-odds that they come from a natural image
    classes: Tensor  # [N, C] its own guess of the class


Discriminator = Callable[[Tensor], Judgment]  # of logits [N, C]


class LogitDiscriminator(nn.Module):
    """A wide residual network on the logits, with one output for natural or not and one per class: WRN-28-5 in the released code.

    There the logits are an image of 1 x 1 pixels, of which a 3 x 3 convolution sees its center alone: a linear layer, as written
    here. Weights of those convolutions load by their center, `weight[:, :, 1, 1]`.
    """

    def __init__(self, classes: int, *, depth: int = 28, widen: int = 5) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1 or widen < 1:
            raise ValueError(
                f"a wide residual network has depth 6 n + 4 with n >= 1 and widen >= 1, got depth={depth} and widen={widen}."
            )
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        body = [_Block(a if k == 0 else b, b) for a, b in pairwise(widths) for k in range(blocks)]
        self.body = nn.Sequential(
            nn.Linear(classes, widths[0], bias=False), *body, nn.BatchNorm1d(widths[-1]), nn.ReLU()
        )
        self.natural = nn.Linear(widths[-1], 1)
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, logits: Tensor) -> Judgment:
        h = self.body(logits)
        return Judgment(self.natural(h)[:, 0], self.classes(h))


class _Block(nn.Module):
    """x + body(a), a = relu(bn(x)); shortcut(a) in place of x where the width changes."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU())
        self.body = nn.Sequential(
            nn.Linear(width, out, bias=False),
            nn.BatchNorm1d(out),
            nn.ReLU(),
            nn.Linear(out, out, bias=False),
        )
        self.widened = width != out
        if self.widened:
            self.shortcut = nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        a = self.activation(x)
        return cast(Tensor, (self.shortcut(a) if self.widened else x) + self.body(a))
