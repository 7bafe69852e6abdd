"""Networks with two heads on one encoder: one names the class, the other the domain the image came from."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize
from saddlepoint.zoo.nets.resnet import stages
from saddlepoint.zoo.nets.staged import MEAN, STD, conv_bn_relu, normalized_stem, pooled_head


class Heads(NamedTuple):
    """What both heads say about one batch."""

    classes: Tensor  # [N, C]
    domain: Tensor  # [N, 2]


class DANNNet(nn.Module):
    """classes = predictor(z), domain = discriminator(R_alpha(z)), z = encoder(x) (Ganin et al. 2016).

    R_alpha is the identity and multiplies gradients by -alpha: while the discriminator learns to tell domains apart, the encoder
    learns to make that hard. Called as a network it gives the classes alone.
    """

    def __init__(self, encoder: nn.Module, predictor: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.discriminator = discriminator

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.predictor(self.encoder(x)))

    def heads(self, x: Tensor, alpha: float) -> Heads:
        z = self.encoder(x)
        return Heads(self.predictor(z), self.discriminator(reverse(z, alpha)))


def reverse(x: Tensor, alpha: float) -> Tensor:
    """x, whose gradient is -alpha times the one that arrives."""
    return cast(Tensor, _Reverse.apply(x, alpha))  # type: ignore[no-untyped-call]


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.alpha * grads[0], None


def dann_mnist(
    width: int = 64, hidden: int = 256, *, side: int = 28, kernel: int = 5, padding: int = 0
) -> DANNNet:
    """The network of Chen et al. 2022, A.4.1: two pooled convolutions and two more, three and five on top, [N, 1, 28, 28] -> 10.

    The first layer has one channel, as in the released code; the paper's table prints three. `side=8, kernel=3, padding=1` with a
    small width suits 8x8 digits.
    """
    wide = 2 * width
    for _ in range(2):
        side = (side + 2 * padding - kernel + 1) // 2
    if side < 1:
        raise ValueError(
            "the images are too small for two unpadded convolutions and pools. Give kernel=3 and padding=1."
        )
    encoder = nn.Sequential(
        Normalize(
            [0.1307], [0.3015]
        ),  # as the released code has it; the standard deviation of MNIST is 0.3081
        nn.Conv2d(1, width, kernel, padding=padding),
        nn.BatchNorm2d(width),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, wide, kernel, padding=padding),
        nn.BatchNorm2d(wide),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        *_convolutions(wide, 2),
    )
    flat = wide * side**2
    predictor = nn.Sequential(
        *_convolutions(wide, 3),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
    discriminator = nn.Sequential(
        *(layer for _ in range(5) for layer in (nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU())),
        nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, 2),
    )  # fmt: skip
    return DANNNet(encoder, predictor, discriminator)


def digits_two_heads() -> DANNNet:
    """The network for MNIST, an eighth as wide, for 8x8 digits."""
    return dann_mnist(8, 32, side=8, kernel=3, padding=1)


def dann_cifar(width: int = 64, *, in_channels: int = 3, classes: int = 10) -> DANNNet:
    """ResNet-18 cut after its third stage, a fourth stage for each head (Chen et al. 2022, A.4.2).

    The paper's table gives the heads 512 input channels; the stage before them has 4 times `width`, 256.
    """
    *first, last = stages(width, (2, 2, 2, 2))
    encoder = nn.Sequential(normalized_stem(conv_bn_relu(in_channels, width), MEAN, STD), *first)
    predictor = nn.Sequential(last, pooled_head(8 * width, classes))
    return DANNNet(
        encoder,
        predictor,
        nn.Sequential(stages(width, (2, 2, 2, 2))[-1], pooled_head(8 * width, 2)),
    )


def _convolutions(channels: int, count: int) -> list[nn.Module]:
    return [
        layer
        for _ in range(count)
        for layer in (
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        )
    ]
