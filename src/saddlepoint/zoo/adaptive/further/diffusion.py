"""Purification by diffusion: add noise that hides a perturbation, then remove it step by step."""

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
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.purification import Purifier, purification_trace
from saddlepoint.zoo.adaptive.validation import require_eval_mode

# Each use of randomness folds its own number into the keys.
_TIME = 1
_NOISE = 2
_TRAINING = Phase(epochs=200, batch_size=128, rate=1e-3)


class NoiseNet(nn.Module):
    """Predict the noise in an image, given the time: ([N, C, H, W], [N]) -> [N, C, H, W].

    Residual blocks at full resolution are shifted by sine and cosine features of the time.

    Args:
        channels: Number of image channels C.
        width: Number of hidden channels.
        blocks: Number of residual blocks.
    """

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
        """Predict the noise in x [N, C, H, W] at times [N] in [0, 1]."""
        frequencies = 2 ** torch.arange(4, device=x.device, dtype=x.dtype)
        angles = time[:, None] * math.pi * frequencies  # [N, 4]
        time_features = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        h = self.begin(x)
        for block, shift in zip(self.blocks, self.shifts, strict=True):
            h = h + block(h + shift(time_features)[:, :, None, None])
        noise: Tensor = self.end(h)
        return noise


class DiffusionPurifier(Purifier):
    """Diffuse the image for `steps` steps, reverse the diffusion and classify: DiffPure.

    v_T = sqrt(a_T) u + sqrt(1 - a_T) n with u = 2 x - 1, then T reverse steps, then
    f((v_0 + 1) / 2):

    v_{t-1} = (v_t - b_t / sqrt(1 - a_t) e(v_t, t)) / sqrt(1 - b_t) + sqrt(b_t) n_t,
    a_t = prod_{s <= t} (1 - b_s), without noise in the last step.

    Nie et al. 2022. Their reverse-time equation is solved by the sampler of Ho et al. 2020
    (Algorithm 2, sigma_t^2 = b_t). b increases linearly from 0.0001 to 0.02 over `horizon` steps,
    of which the first `steps` are used: 100 of 1000, t* = 0.1. The noising and every reverse step
    pass through `purify`. The view `purify/t` is the network after t reverse steps, and `purify/0`
    is the network on the image itself.

    Args:
        net: Classifier f: [N, C, H, W] -> [N, classes] in eval mode.
        noise_net: Noise predictor e(v, t / horizon) in eval mode.
        steps: Number T of reverse steps.
        horizon: Number of steps of the full diffusion.

    Raises:
        ValueError: If `steps` exceeds `horizon` or a network is in training mode.
    """

    def __init__(
        self, net: nn.Module, noise_net: nn.Module, *, steps: int = 100, horizon: int = 1000
    ) -> None:
        super().__init__(net, steps)
        if steps > horizon:
            raise ValueError(
                f"DiffusionPurifier needs steps <= horizon, got steps={steps}, horizon={horizon}."
            )
        require_eval_mode(noise_net, role="noise network", owner="DiffusionPurifier")
        self.noise_net = noise_net
        self.horizon = horizon
        self.random = steps > 0
        betas = torch.linspace(1e-4, 0.02, horizon, dtype=torch.float64)
        self.b = tuple(betas.tolist())  # b_1 .. b_horizon
        self.a = tuple(accumulate((1 - b for b in self.b), mul))  # a_1 .. a_horizon

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits after every reverse step."""
        states = [x]
        if self.steps:
            v = ctx.through("purify", partial(self._add_noise, ctx), x)
            for t in range(self.steps, 0, -1):
                v = ctx.through("purify", partial(self._reverse_step, ctx, t), v)
                states.append(v)

        def classify(v: Tensor) -> Tensor:
            logits: Tensor = self.net(x if v is x else (v + 1) / 2)
            return logits

        return purification_trace(states, classify, self.steps, ctx)

    def _add_noise(self, ctx: Context, x: Tensor) -> Tensor:
        a = x.new_full((len(x),), self.a[self.steps - 1])
        return diffuse(2 * x - 1, ctx.randn_like(x), a)

    def _reverse_step(self, ctx: Context, t: int, v: Tensor) -> Tensor:
        a = self.a[t - 1]
        b = self.b[t - 1]
        predicted = self.noise_net(v, v.new_full((len(v),), t / self.horizon))
        mean: Tensor = (v - b / math.sqrt(1 - a) * predicted) / math.sqrt(1 - b)
        return mean + math.sqrt(b) * ctx.randn_like(v) if t > 1 else mean

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> DiffusionPurifier:
        """Train a copy of the noise network with Adam.

        The loss is |e(sqrt(a_t) u + sqrt(1 - a_t) n, t) - n|^2 (Ho et al. 2020, Algorithm 1). t is
        uniform over the steps that the purifier uses; later steps serve to generate images.

        Args:
            x: [M, C, H, W] training images.
            phase: Epochs, batch size and learning rate.
            seed: Seed of the minibatches, times and noise.

        Returns:
            A new defense with the trained network.

        Raises:
            ValueError: If the defense has no steps.
        """
        if not self.steps:
            raise ValueError(
                "DiffusionPurifier with steps=0 does not use its network: nothing to fit."
            )
        net = copy.deepcopy(self.noise_net).train()
        a = torch.tensor(self.a[: self.steps], dtype=x.dtype, device=x.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=phase.rate)

        def losses(batch: Batch) -> Tensor:
            k = batch.keys.fold_in(_TIME).integers(self.steps)
            n = batch.keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
            noisy = diffuse(2 * x[batch.rows] - 1, n, a[k])
            error: Tensor = net(noisy, (k + 1).to(x.dtype) / self.horizon) - n
            return error.square().flatten(1).mean(1)

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return DiffusionPurifier(self.net, net.eval(), steps=self.steps, horizon=self.horizon)


def diffuse(u: Tensor, n: Tensor, a: Tensor) -> Tensor:
    """Return sqrt(a) u + sqrt(1 - a) n, with a [N]."""
    return per_example(a.sqrt(), u) * u + per_example((1 - a).sqrt(), u) * n
