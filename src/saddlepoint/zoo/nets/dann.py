"""Networks with two heads on one encoder: one predicts the class, the other the domain."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize
from saddlepoint.zoo.nets.resnet import stages
from saddlepoint.zoo.nets.staged import MEAN, STD, conv_bn_relu, normalized_stem, pooled_head


class Heads(NamedTuple):
    """The outputs of both heads for one batch."""

    classes: Tensor  # logits [N, C]
    domain: Tensor  # logits [N, 2]


class DANNNet(nn.Module):
    """A domain adversarial network (Ganin et al. 2016).

    classes = predictor(z), domain = discriminator(R_alpha(z)), z = encoder(x).

    R_alpha is the identity in the forward pass and multiplies gradients by -alpha. The
    discriminator learns to distinguish the domains, and the encoder learns to prevent that. The
    forward pass returns the classes only.

    Args:
        encoder: Maps images to features.
        predictor: Maps features to logits [N, C].
        discriminator: Maps features to logits [N, 2].
    """

    def __init__(self, encoder: nn.Module, predictor: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.discriminator = discriminator

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.predictor(self.encoder(x)))

    def heads(self, x: Tensor, alpha: float) -> Heads:
        """Return the outputs of both heads, with the gradient of the domain reversed."""
        z = self.encoder(x)
        return Heads(self.predictor(z), self.discriminator(reverse(z, alpha)))


def reverse(x: Tensor, alpha: float) -> Tensor:
    """Return x; its gradient is multiplied by -alpha."""
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
    """Return the network of Chen et al. 2022, A.4.1, [N, 1, 28, 28] -> [N, 10].

    The encoder has two convolutions with pooling and two more. The predictor has three convolutions
    and the discriminator five, each followed by two linear layers. The first layer has one input
    channel, as in the released code; the table of the paper says three. For 8x8 digits use a small
    width with `side=8, kernel=3, padding=1`.

    Args:
        width: Channels of the first convolution; the others have twice as many.
        hidden: Units of the hidden linear layers.
        side: Height and width of the image.
        kernel: Kernel size of the first two convolutions.
        padding: Padding of the first two convolutions.

    Raises:
        ValueError: The image is too small.
    """
    wide = 2 * width
    for _ in range(2):
        side = (side + 2 * padding - kernel + 1) // 2
    if side < 1:
        raise ValueError(
            "the images are too small for two unpadded convolutions with pooling. "
            "Use kernel=3 and padding=1."
        )
    encoder = nn.Sequential(
        # As in the released code; the standard deviation of MNIST is 0.3081.
        Normalize([0.1307], [0.3015]),
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
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 2),
    )
    return DANNNet(encoder, predictor, discriminator)


def digits_two_heads() -> DANNNet:
    """Return the network for MNIST at an eighth of its width, for 8x8 digits."""
    return dann_mnist(8, 32, side=8, kernel=3, padding=1)


def dann_cifar(width: int = 64, *, in_channels: int = 3, classes: int = 10) -> DANNNet:
    """Return a ResNet-18 with a separate fourth stage for each head (Chen et al. 2022, A.4.2).

    The table of the paper says that the heads have 512 input channels. The stage before them has 4
    times `width`, which is 256.

    Args:
        width: Channels of the first stage.
        in_channels: Channels of the image.
        classes: Number of classes.
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
