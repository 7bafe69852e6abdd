"""Small convolutional networks for 8x8 digits."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize


class DigitsCNN(nn.Module):
    """Three convolutions and two linear layers with 56 074 parameters.

    [N, 1, 8, 8] in [0, 1] -> [N, 10].
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            Normalize([0.305], [0.376]),  # mean and standard deviation of the training digits
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),  # [N, 32, 4, 4]
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),  # [N, 768]
            nn.Linear(768, 48),
            nn.ReLU(),
            nn.Linear(48, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x))


def digits_small() -> nn.Sequential:
    """One convolution with batch norm and a linear layer, 1,386 parameters: fast to attack.

    [N, 1, 8, 8] in [0, 1] -> [N, 10].
    """
    return nn.Sequential(
        Normalize([0.305], [0.376]),
        nn.Conv2d(1, 8, 3, stride=2, padding=1),  # [N, 8, 4, 4]
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
