"""The small convolutional network for MNIST that adversarial training is most often shown on."""

from __future__ import annotations

from torch import nn


def lenet(
    channels: int = 32, hidden: int = 1024, *, side: int = 28, classes: int = 10
) -> nn.Sequential:
    """Two 5x5 convolutions, `channels` and twice as many, each halved by a pool, then `hidden` units (Madry et al. 2018).

    The penultimate layer is the rectified hidden one. [N, 1, side, side] -> [N, classes]; for 8x8 digits take `side=8`.
    """
    return nn.Sequential(
        nn.Conv2d(1, channels, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * (side // 4) ** 2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def digits_lenet() -> nn.Sequential:
    """A network for 8x8 digits that is trained in seconds, 22 154 parameters."""
    return lenet(16, 64, side=8)
