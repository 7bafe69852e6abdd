"""PixelDefend: replace each pixel by the most likely value near it, one pixel after another."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.purification import Purifier
from saddlepoint.zoo.adaptive.validation import require_eval_mode

_TRAINING = Phase(epochs=50, batch_size=128, rate=1e-3)


class PixelCNN(nn.Module):
    """Logits of each pixel's level, given the pixels above it and to its left.

    [N, 1, H, W] in [0, 1] -> [N, L, H, W]. Masked convolutions (van den Oord et al. 2016): the
    kernels of the first layer use only pixels before their center, the others also the center.

    Args:
        levels: Number L of pixel levels, >= 2.
        width: Number of hidden channels.
        depth: Number of hidden layers.
        kernel: Side of the kernels.
    """

    def __init__(
        self, levels: int = 256, *, width: int = 32, depth: int = 4, kernel: int = 5
    ) -> None:
        super().__init__()
        if levels < 2:
            raise ValueError(f"PixelCNN needs at least two pixel levels, got levels={levels}.")
        self.levels = levels
        self.first = _MaskedConv2d(1, width, kernel, include_center=False)
        self.body = nn.ModuleList(
            _MaskedConv2d(width, width, kernel, include_center=True) for _ in range(depth)
        )
        self.last = nn.Conv2d(width, levels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, L, H, W] for images x [N, 1, H, W]."""
        h = self.first(2 * x - 1)
        for layer in self.body:
            h = h + layer(torch.relu(h))
        return cast(Tensor, self.last(torch.relu(h)))


class PixelDefend(Purifier):
    """Replace each pixel by the most likely level near it, then classify the new image x'.

    x'_i = argmax_v p(v | x'_1 .. x'_{i-1})  over the levels v with |v - x_i| <= radius.

    The pixels i are replaced in reading order (Song et al. 2018, Algorithm 1, for images with one
    channel). The published radius is 16/255 on CIFAR-10 and 32/255 on Fashion-MNIST. The level
    nearest to x_i is always allowed. All replacements are one step at the site `purify` and have
    no gradient; `BPDA()` replaces the backward pass by the identity.

    Args:
        net: Classifier f: [N, 1, H, W] -> [N, C] in eval mode.
        density: Pixel model p in eval mode.
        radius: Largest change of a pixel, in units of the input.
    """

    def __init__(self, net: nn.Module, density: PixelCNN, *, radius: float = 16 / 255) -> None:
        super().__init__(net, 1)
        if radius < 0:
            raise ValueError(f"PixelDefend needs radius >= 0, got radius={radius}.")
        require_eval_mode(density, role="density network", owner="PixelDefend")
        self.density = density
        self.radius = radius

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the image and of the purified image."""

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.most_likely(v)

        return self.classify_iterates(step, x, ctx)

    @torch.no_grad()
    def most_likely(self, x: Tensor) -> Tensor:
        """Return the purified images x' [N, 1, H, W].

        Raises:
            ValueError: If the images do not have one channel.
        """
        if x.ndim != 4 or x.shape[1] != 1:
            raise ValueError(
                f"PixelDefend needs images with one channel, [N, 1, H, W], got {list(x.shape)}. "
                "Convert them to grayscale."
            )
        values = torch.linspace(0, 1, self.density.levels, dtype=x.dtype, device=x.device)
        distance = (values[:, None, None] - x).abs()  # [N, L, H, W]
        # The tolerance admits levels at a distance that equals the radius up to rounding.
        nearest = distance == distance.amin(1, keepdim=True)
        allowed = (distance <= self.radius + 1e-6) | nearest
        height, width = x.shape[2:]
        for i in range(height):
            for j in range(width):
                logits = self.density(x)[:, :, i, j]  # [N, L]
                logits = logits.masked_fill(~allowed[:, :, i, j], -torch.inf)
                pixel = torch.zeros(height, width, dtype=torch.bool, device=x.device)
                pixel[i, j] = True
                x = torch.where(pixel, values[logits.argmax(1)][:, None, None, None], x)
        return x

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> PixelDefend:
        """Train a copy of the pixel model with Adam on the mean of -log p(x_i | x_1 .. x_{i-1}).

        Args:
            x: [M, 1, H, W] training images in [0, 1].
            phase: Epochs, batch size and learning rate.
            seed: Seed of the minibatches.

        Returns:
            A new defense with the trained pixel model.
        """
        density = copy.deepcopy(self.density).train()
        optimizer = torch.optim.Adam(density.parameters(), lr=phase.rate)
        level = (x[:, 0] * (density.levels - 1)).round().long()  # [M, H, W]

        def losses(batch: Batch) -> Tensor:
            logits = density(x[batch.rows])
            loss = nn.functional.cross_entropy(logits, level[batch.rows], reduction="none")
            return loss.mean((1, 2))

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return PixelDefend(self.net, density.eval(), radius=self.radius)


class _MaskedConv2d(nn.Conv2d):
    """Convolution that uses only pixels before its center in reading order, or also the center."""

    mask: Tensor

    def __init__(self, channels: int, out: int, kernel: int, *, include_center: bool) -> None:
        super().__init__(channels, out, kernel, padding=kernel // 2)
        mask = torch.zeros(kernel, kernel)
        mask.view(-1)[: kernel * kernel // 2 + include_center] = 1
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._conv_forward(x, self.weight * self.mask, self.bias))
