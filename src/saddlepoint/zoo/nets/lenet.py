"""The small convolutional network for MNIST that is common in adversarial training."""

from __future__ import annotations

from torch import nn


def lenet(
    channels: int = 32, hidden: int = 1024, *, side: int = 28, classes: int = 10
) -> nn.Sequential:
    """Return the network of Madry et al. 2018, [N, 1, side, side] -> [N, classes].

    It has two 5x5 convolutions, each followed by a pooling that halves the image, and one hidden
    layer. The penultimate layer is the hidden one after its ReLU.

    Args:
        channels: Channels of the first convolution; the second has twice as many.
        hidden: Units of the hidden layer.
        side: Height and width of the image; 8 for 8x8 digits.
        classes: Number of classes.
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
    """Return a network for 8x8 digits with 22 154 parameters, which trains in seconds."""
    return lenet(16, 64, side=8)
