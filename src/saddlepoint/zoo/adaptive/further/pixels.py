"""PixelDefend: pixel after pixel, the likeliest value near the one that was sent."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Purifier, shown, walk
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded

_TRAINING = Phase(epochs=50, batch_size=128, rate=1e-3)


class PixelCNN(nn.Module):
    """[N, 1, H, W] in [0, 1] -> [N, L, H, W]: log-odds of each pixel's level, given the pixels above it and to its left.

    Convolutions whose kernels see nothing at or after their center, the first, or after it, the others (van den Oord et al. 2016).
    """

    def __init__(
        self, levels: int = 256, *, width: int = 32, depth: int = 4, kernel: int = 5
    ) -> None:
        super().__init__()
        if levels < 2:
            raise ValueError(f"pixels have at least two levels, got levels={levels}.")
        self.levels = levels
        self.first = _Causal(1, width, kernel, itself=False)
        self.body = nn.ModuleList(_Causal(width, width, kernel, itself=True) for _ in range(depth))
        self.last = nn.Conv2d(width, levels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(2 * x - 1)
        for layer in self.body:
            h = h + layer(torch.relu(h))
        return cast(Tensor, self.last(torch.relu(h)))


class PixelDefend(Purifier):
    """x'_i = argmax_v p(v | x'_1 .. x'_{i-1}) over the levels v with |v - x_i| <= radius, i in reading order; then f(x').

    Song et al. 2018, Algorithm 1, on images of one channel; the published radius is 16/255 on CIFAR-10, 32/255 on Fashion-MNIST.
    The level nearest to x_i is always allowed. All of it is one step at the site `purify`, without slope: `BPDA()` takes it for the
    identity.
    """

    def __init__(self, net: nn.Module, density: PixelCNN, *, radius: float = 16 / 255) -> None:
        super().__init__(net, 1)
        if radius < 0:
            raise ValueError(f"PixelDefend needs radius >= 0, got radius={radius}.")
        if density.training:
            raise ValueError("PixelDefend was given a density in training mode. Call its eval().")
        self.density = density
        self.radius = radius

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.likeliest(v)

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)

    @torch.no_grad()
    def likeliest(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != 1:
            raise ValueError(
                f"PixelDefend reads images of one channel, [N, 1, H, W], got {list(x.shape)}. Convert them to gray."
            )
        values = torch.linspace(0, 1, self.density.levels, dtype=x.dtype, device=x.device)
        off = (values[:, None, None] - x).abs()  # [N, L, H, W]
        # Half a step of rounding: a level exactly on the rim belongs to the set.
        allowed = (off <= self.radius + 1e-6) | (off == off.amin(1, keepdim=True))
        height, width = x.shape[2:]
        for i in range(height):
            for j in range(width):
                odds = self.density(x)[:, :, i, j].masked_fill(
                    ~allowed[:, :, i, j], -torch.inf
                )  # [N, L]
                here = torch.zeros(height, width, dtype=torch.bool, device=x.device)
                here[i, j] = True
                x = torch.where(here, values[odds.argmax(1)][:, None, None, None], x)
        return x

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> PixelDefend:
        """The same with a density that has learned x, by Adam on the mean over pixels of -log p(x_i | x_1 .. x_{i-1})."""
        density = copy.deepcopy(self.density).train()
        optimizer = torch.optim.Adam(density.parameters(), lr=phase.rate)
        level = (x[:, 0] * (density.levels - 1)).round().long()  # [N, H, W]

        def losses(batch: Batch) -> Tensor:
            odds = density(x[batch.rows])
            return nn.functional.cross_entropy(odds, level[batch.rows], reduction="none").mean(
                (1, 2)
            )

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return PixelDefend(self.net, density.eval(), radius=self.radius)


class _Causal(nn.Conv2d):
    """A convolution that sees what comes before its center in reading order, and the center `itself` if asked."""

    seen: Tensor

    def __init__(self, channels: int, out: int, kernel: int, *, itself: bool) -> None:
        super().__init__(channels, out, kernel, padding=kernel // 2)
        seen = torch.zeros(kernel, kernel)
        seen.view(-1)[: kernel * kernel // 2 + itself] = 1
        self.register_buffer("seen", seen)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self._conv_forward(x, self.weight * self.seen, self.bias))
