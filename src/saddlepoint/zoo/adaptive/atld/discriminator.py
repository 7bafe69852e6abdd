"""Discriminator between natural and adversarial images that sees only the logits."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, cast

from torch import Tensor, nn


class DiscriminatorOutput(NamedTuple):
    """Output of a discriminator for a batch of logits."""

    natural_logit: Tensor  # [N] log-odds that the image is natural
    class_logits: Tensor  # [N, C] logits of the class


class LogitDiscriminator(nn.Module):
    """Wide residual network on the logits with an output for "natural" and one per class.

    The released code uses WRN-28-5 and treats the logits as an image of 1 x 1 pixels. There a
    3 x 3 convolution uses only the center of its kernel and equals the linear layer used here.
    Weights of such convolutions can be loaded by their center, `weight[:, :, 1, 1]`.

    Args:
        classes: Number of classes C.
        depth: Depth 6 n + 4 of the network, n >= 1.
        widen: Widening factor, >= 1.

    Raises:
        ValueError: If depth or widening factor is invalid.
    """

    def __init__(self, classes: int, *, depth: int = 28, widen: int = 5) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1 or widen < 1:
            raise ValueError(
                "a wide residual network has depth 6 n + 4 with n >= 1 and widen >= 1, "
                f"got depth={depth} and widen={widen}."
            )
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        body = [_Block(a if k == 0 else b, b) for a, b in pairwise(widths) for k in range(blocks)]
        self.body = nn.Sequential(
            nn.Linear(classes, widths[0], bias=False), *body, nn.BatchNorm1d(widths[-1]), nn.ReLU()
        )
        self.natural = nn.Linear(widths[-1], 1)
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, logits: Tensor) -> DiscriminatorOutput:
        """Judge logits [N, C]."""
        h = self.body(logits)
        return DiscriminatorOutput(self.natural(h)[:, 0], self.classes(h))


class _Block(nn.Module):
    """x + body(a) with a = relu(bn(x)); where the width changes, shortcut(a) replaces x."""

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
