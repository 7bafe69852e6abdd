"""What the multi-exit networks are made of: stages in turn, a classifier after each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize

# Pixels in [0, 1] come out in about [-2, 2], whatever the number of channels; a data set's own figures serve as well.
MEAN = (0.5,)
STD = (0.25,)


class Staged(nn.Module):
    """z_0 = stem(x), z_i = stage_i(z_{i-1}), logits_i = head_i(z_i): [N, C] for each of the exits, the last one last."""

    def __init__(
        self, stem: nn.Module, stages: Iterable[nn.Module], heads: Iterable[nn.Module]
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleList(heads)
        assert len(self.stages) == len(self.heads)

    @property
    def exits(self) -> int:
        return len(self.heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        exits = []
        z = self.stem(x)
        for stage, head in zip(self.stages, self.heads, strict=True):
            z = stage(z)
            exits.append(head(z))
        return exits


def convolution(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Keeps the size but for its stride. No bias: batch norm follows sooner or later. Drawn as He et al. 2015 do for rectifiers."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def conv_bn(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(convolution(channels, out, kernel, stride), nn.BatchNorm2d(out))


def conv_bn_relu(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return conv_bn(channels, out, kernel, stride).append(nn.ReLU())


def normalized_stem(first: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """Normalization inside the network, so that attacks and perturbation sets stay in pixels."""
    return nn.Sequential(Normalize(mean, std), first)


def pooled_head(channels: int, classes: int) -> nn.Sequential:
    """[N, channels, H, W] -> [N, classes]: the mean over the picture, then one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def strided_head(channels: int, classes: int, width: int) -> nn.Sequential:
    """Two strided convolutions before the mean: the classifier of MSDNet and RANet, `width` 128 there."""
    first = conv_bn_relu(channels, width, stride=2)
    second = conv_bn_relu(width, width, stride=2)
    return nn.Sequential(*first, *second, *pooled_head(width, classes))


def bottlenecked(channels: int, out: int, factor: int, stride: int = 1) -> nn.Sequential:
    """A 1x1 convolution to at most factor x out channels, then a 3x3 one: the layer of MSDNet and RANet."""
    inner = min(channels, factor * out)
    return nn.Sequential(
        *conv_bn_relu(channels, inner, kernel=1), *conv_bn_relu(inner, out, stride=stride)
    )
