"""Building blocks of multi-exit networks: a sequence of stages with a classifier after each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from saddlepoint.zoo.nets.normalize import Normalize

# Maps pixels from [0, 1] to [-2, 2] for any number of channels. Statistics of a data set work too.
MEAN = (0.5,)
STD = (0.25,)


class Staged(nn.Module):
    """A network with an exit after every stage; the output is one [N, C] per exit, in order.

    z_0 = stem(x), z_i = stage_i(z_{i-1}), logits_i = head_i(z_i).

    Args:
        stem: The first layers.
        stages: The stages.
        heads: One classifier per stage.
    """

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
        """The number of exits."""
        return len(self.heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        exits = []
        z = self.stem(x)
        for stage, head in zip(self.stages, self.heads, strict=True):
            z = stage(z)
            exits.append(head(z))
        return exits


def convolution(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the image size, apart from its stride.

    It has no bias, because batch norm follows later. The weights are initialized as in He et al.
    2015 for ReLU.
    """
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def conv_bn(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution and batch norm."""
    return nn.Sequential(convolution(channels, out, kernel, stride), nn.BatchNorm2d(out))


def conv_bn_relu(channels: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution, batch norm and ReLU."""
    return conv_bn(channels, out, kernel, stride).append(nn.ReLU())


def normalized_stem(first: nn.Module, mean: Sequence[float], std: Sequence[float]) -> nn.Sequential:
    """Return pixel normalization followed by `first`, so that attacks work on raw pixels."""
    return nn.Sequential(Normalize(mean, std), first)


def pooled_head(channels: int, classes: int) -> nn.Sequential:
    """Return a classifier [N, channels, H, W] -> [N, classes].

    It averages over the image and applies one linear layer.
    """
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def strided_head(channels: int, classes: int, width: int) -> nn.Sequential:
    """Return the classifier of MSDNet and RANet: two strided convolutions before a `pooled_head`.

    `width` is the number of channels of the convolutions, 128 in the papers.
    """
    first = conv_bn_relu(channels, width, stride=2)
    second = conv_bn_relu(width, width, stride=2)
    return nn.Sequential(*first, *second, *pooled_head(width, classes))


def bottlenecked(channels: int, out: int, factor: int, stride: int = 1) -> nn.Sequential:
    """Return the layer of MSDNet and RANet: a 1x1 convolution, then a 3x3 one.

    The 1x1 convolution has at most `factor` times `out` channels.
    """
    inner = min(channels, factor * out)
    return nn.Sequential(
        *conv_bn_relu(channels, inner, kernel=1), *conv_bn_relu(inner, out, stride=stride)
    )
