"""What the multi-exit networks are made of: stages in turn, a classifier after each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize

# Pixels in [0, 1] come out in about [-2, 2], whatever the number of channels; a data set's own figures serve as well.
MEAN, STD = (0.5,), (0.25,)


class Staged(nn.Module):
    """z_0 = stem(x), z_i = stage_i(z_{i-1}), logits_i = head_i(z_i): [N, C] for each of the exits, the last one last."""

    def __init__(self, stem: nn.Module, stages: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stem, self.stages, self.heads = stem, nn.ModuleList(stages), nn.ModuleList(heads)
        assert len(self.stages) == len(self.heads)

    @property
    def exits(self) -> int:
        return len(self.heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        exits, z = [], self.stem(x)
        for stage, head in zip(self.stages, self.heads, strict=True):
            z = stage(z)
            exits.append(head(z))
        return exits


def conv_bn(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size but for its stride, and batch norm, which makes a bias idle."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    return initialised(nn.Sequential(conv, nn.BatchNorm2d(out)))


def conv_bn_relu(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return conv_bn(channels, out, kernel, stride).append(nn.ReLU())


def normalised_stem(first: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """Normalisation inside the network, so that attacks and perturbation sets stay in pixels."""
    return nn.Sequential(Normalize(mean, std), first)


def pooled_head(channels: int, classes: int) -> nn.Sequential:
    """[N, channels, H, W] -> [N, classes]: the mean over the picture, then one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def initialised(net: nn.Sequential) -> nn.Sequential:
    """Convolutions drawn as He et al. 2015 do for rectifiers, by the channels that go out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class Residual(nn.Module):
    """rectify(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(cast(Tensor, self.shortcut(x) + self.body(x)))
