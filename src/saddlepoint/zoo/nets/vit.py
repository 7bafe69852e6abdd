"""Vision transformers with exits between their blocks (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.staged import MEAN, STD, Staged, normalized_stem


def vit_b16(
    image_size: int = 224,
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """Return ViT-B/16 with exits after blocks 3, 6, 9 and 12.

    It has 12 blocks with 12 attention heads, width 768 and patches of 16x16 pixels. With 1000
    classes and without the three early heads it has the 86 567 656 parameters of the original.

    Args:
        image_size: Images of another size are scaled to it inside the network, so that attacks work
            on the original pixels. A multiple of 16.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.

    Raises:
        ValueError: `image_size` is not a multiple of 16.
    """
    return _vit(image_size, 16, 768, 12, 12, in_channels, classes, mean, std)


def vit_small(
    image_size: int = 32,
    patch: int = 4,
    width: int = 96,
    depth: int = 8,
    attention_heads: int = 3,
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """Return a vision transformer for small images, 0.9 million parameters, with four exits.

    There is an exit after each quarter of the blocks. For 8x8 digits use
    `vit_small(8, patch=2, width=32, depth=4, in_channels=1)`.

    Args:
        image_size: Images of another size are scaled to it inside the network.
        patch: Height and width of a patch; a divisor of `image_size`.
        width: Numbers per token; a multiple of `attention_heads`.
        depth: Number of blocks; a multiple of 4.
        attention_heads: Attention heads per block.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.

    Raises:
        ValueError: One of these numbers is not a multiple as required.
    """
    return _vit(image_size, patch, width, depth, attention_heads, in_channels, classes, mean, std)


def _vit(
    image_size: int,
    patch: int,
    width: int,
    depth: int,
    attention_heads: int,
    in_channels: int,
    classes: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Staged:
    for what, number, divisor in (
        ("image_size", image_size, patch),
        ("depth", depth, 4),
        ("width", width, attention_heads),
    ):
        if number % divisor:
            raise ValueError(f"{what} must be a multiple of {divisor}, got {what}={number}.")
    tokens = _Tokens(image_size, patch, width, in_channels)
    stages = [
        nn.Sequential(*(_Block(width, attention_heads) for _ in range(depth // 4)))
        for _ in range(4)
    ]
    return Staged(
        normalized_stem(tokens, mean, std), stages, [_ClassToken(width, classes) for _ in stages]
    )


class _Tokens(nn.Module):
    """A class token and the embedded patches, each plus a learned position.

    [N, C, H, W] -> [N, 1 + patches, width].
    """

    def __init__(self, image_size: int, patch: int, width: int, in_channels: int) -> None:
        super().__init__()
        self.image_size = image_size
        self.embed = nn.Conv2d(in_channels, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(
            torch.empty(1, 1 + (image_size // patch) ** 2, width).normal_(std=0.02)
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.image_size:
            x = nn.functional.interpolate(x, self.image_size, mode="bilinear", align_corners=False)
        patches = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), patches], dim=1) + self.position


class _Block(nn.Module):
    """x <- x + attention(norm(x)), then x <- x + perceptron(norm(x))."""

    def __init__(self, width: int, attention_heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6), _Attention(width, attention_heads)
        )
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width, eps=1e-6),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return cast(Tensor, x + self.perceptron(x))


class _Attention(nn.Module):
    """Multi-head self-attention: softmax(Q K^T / sqrt(d)) V in every head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.questions_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        split = self.questions_keys_values(x).view(n, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # [N, heads, tokens, d] each
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return cast(Tensor, self.out(mixed.transpose(1, 2).reshape(n, tokens, width)))


class _ClassToken(nn.Module):
    """A linear classifier on the class token, [N, tokens, width] -> [N, classes]."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(self.norm(x[:, 0])))
