"""The robust CIFAR-10 network under the defenses at scale real, with layers that have names.

Its weights are read from the folder of third-party models; none ship with this package.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

NAME = "cifar10/abcrown_resnet4b"
RADIUS = 2 / 255  # of its adversarial training
LAYERS = ("stem", "layer1", "layer2", "linear1")
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2471, 0.2435, 0.2616)


class _Block(nn.Module):
    """Two convolutions with biases and without batch norm, and a convolution beside them."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1)
        changes = stride > 1 or inside != width
        self.shortcut = nn.Sequential(nn.Conv2d(inside, width, 1, stride)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(conv2(relu(conv1(x))) + shortcut(x))."""
        h = self.conv2(F.relu(self.conv1(x)))
        return F.relu(h + (x if self.shortcut is None else self.shortcut(x)))


class RobustResNet(nn.Module):
    """The residual network "resnet4b" of alpha-beta-CROWN, adversarially trained at 2/255.

    It maps images [N, 3, 32, 32] in [0, 1] to logits [N, 10] and normalizes its input.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_STD).view(1, 3, 1, 1), persistent=False)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
        self.layer1 = nn.Sequential(_Block(16, 32, 2), _Block(32, 32, 1))
        self.layer2 = nn.Sequential(_Block(32, 32, 2), _Block(32, 32, 1))
        self.linear1 = nn.Linear(512, 100)
        self.linear2 = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = (x - self.mean) / self.std
        features = self.layer2(self.layer1(self.stem(x))).flatten(1)
        logits: Tensor = self.linear2(F.relu(self.linear1(features)))
        return logits


def load_robust_net(file: Path) -> RobustResNet:
    """Read the network from its weight file, in eval mode and without gradients of weights."""
    net = RobustResNet()
    tensors = {_own_name(key): tensor.float() for key, tensor in load_file(file).items()}
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)


def _own_name(key: str) -> str:
    return f"stem.0.{key.removeprefix('conv1.')}" if key.startswith("conv1.") else key
