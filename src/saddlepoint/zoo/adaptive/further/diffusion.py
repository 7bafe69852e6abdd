"""Purification by diffusion: noise that drowns an attack, then the way back along a learned score."""

from __future__ import annotations

import copy
import math
from functools import partial
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Purifier, shown
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded

_TIME = 1
_NOISE = 2
_TRAINING = Phase(epochs=200, batch_size=128, rate=1e-3)


class NoiseNet(nn.Module):
    """([N, C, H, W], [N] times in [0, 1]) -> the noise in the image: residual blocks at full size, shifted by waves of the time."""

    def __init__(self, channels: int = 3, *, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.begin = nn.Conv2d(channels, width, 3, padding=1)
        self.end = nn.Conv2d(width, channels, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU())
        self.shifts = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(1, width),
                nn.SiLU(),
                nn.Conv2d(width, width, 3, padding=2**k % 7, dilation=2**k % 7),
            )
            for k in range(blocks)
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        waves = (
            time[:, None] * math.pi * 2 ** torch.arange(4, device=x.device, dtype=x.dtype)
        )  # [N, 4]
        told = self.time(torch.cat([waves.sin(), waves.cos()], dim=1))
        h = self.begin(x)
        for block, shift in zip(self.blocks, self.shifts, strict=True):
            h = h + block(h + shift(told)[:, :, None, None])
        noise: Tensor = self.end(h)
        return noise


class DiffusionPurifier(Purifier):
    """v_T = sqrt(a_T) u + sqrt(1 - a_T) n with u = 2 x - 1, then T steps back, and f((v_0 + 1) / 2).

    v_{t-1} = (v_t - b_t / sqrt(1 - a_t) e(v_t, t)) / sqrt(1 - b_t) + sqrt(b_t) n_t, a_t = prod_{s <= t} (1 - b_s), no noise in the
    last step: DiffPure (Nie et al. 2022), with the sampler of Ho et al. 2020 (Algorithm 2, sigma_t^2 = b_t) for its reverse-time
    equation. b rises evenly from 0.0001 to 0.02 over `horizon` steps, of which the first `steps` are gone: 100 of 1000, t* = 0.1.
    Forth and back are one crossing of `purify` each; `purify/t` is the net after t steps back, and `purify/0` on the image itself.
    """

    def __init__(
        self, net: nn.Module, noise: nn.Module, *, steps: int = 100, horizon: int = 1000
    ) -> None:
        super().__init__(net, steps)
        if steps > horizon:
            raise ValueError(
                f"DiffusionPurifier cannot go {steps} steps of {horizon}. Give steps <= horizon."
            )
        if noise.training:
            raise ValueError(
                "DiffusionPurifier was given a network in training mode. Call its eval()."
            )
        self.noise = noise
        self.horizon = horizon
        self.random = steps > 0
        self.b = tuple(
            torch.linspace(1e-4, 0.02, horizon, dtype=torch.float64).tolist()
        )  # b_1 .. b_horizon
        self.a = tuple(accumulate((1 - b for b in self.b), mul))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        states = [x]
        if self.steps:
            v = ctx.through("purify", partial(self._forth, ctx), x)
            for t in range(self.steps, 0, -1):
                v = ctx.through("purify", partial(self._back, ctx, t), v)
                states.append(v)
        return shown(states, lambda v: self._answer(v, v is x), self.steps, ctx)

    def _answer(self, v: Tensor, is_image: bool) -> Tensor:
        logits: Tensor = self.net(v if is_image else (v + 1) / 2)
        return logits

    def _forth(self, ctx: Context, x: Tensor) -> Tensor:
        return diffused(2 * x - 1, ctx.randn_like(x), x.new_full((len(x),), self.a[self.steps - 1]))

    def _back(self, ctx: Context, t: int, v: Tensor) -> Tensor:
        a = self.a[t - 1]
        b = self.b[t - 1]
        guess = self.noise(v, v.new_full((len(v),), t / self.horizon))
        mean = (v - b / math.sqrt(1 - a) * guess) / math.sqrt(1 - b)
        moved: Tensor = mean + math.sqrt(b) * ctx.randn_like(v) if t > 1 else mean
        return moved

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> DiffusionPurifier:
        """The same with a network that has learned to see the noise, by Adam: |e(sqrt(a_t) u + sqrt(1 - a_t) n, t) - n|^2.

        Ho et al. 2020, Algorithm 1, with t uniform among the steps that are gone: later ones serve to generate images.
        """
        if not self.steps:
            raise ValueError(
                "DiffusionPurifier with steps=0 never asks its network: there is nothing to fit."
            )
        net = copy.deepcopy(self.noise).train()
        gone = torch.tensor(self.a[: self.steps], dtype=x.dtype, device=x.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=phase.rate)

        def losses(batch: Batch) -> Tensor:
            k = batch.keys.fold_in(_TIME).integers(self.steps)
            n = batch.keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
            seen = diffused(2 * x[batch.rows] - 1, n, gone[k])
            missed: Tensor = net(seen, (k + 1).to(x.dtype) / self.horizon) - n
            return missed.square().flatten(1).mean(1)

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return DiffusionPurifier(self.net, net.eval(), steps=self.steps, horizon=self.horizon)


def diffused(u: Tensor, n: Tensor, a: Tensor) -> Tensor:
    """sqrt(a) u + sqrt(1 - a) n with a [N]."""
    return per_example(a.sqrt(), u) * u + per_example((1 - a).sqrt(), u) * n
