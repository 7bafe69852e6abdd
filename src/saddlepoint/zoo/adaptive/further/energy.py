"""Purification by an energy: the image wanders to where natural ones lie, long enough to forget an attack."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Trace
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.descent import slope
from saddlepoint.zoo.adaptive.inner import Purifier, shown, walk
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded

_STEP = 1
_NOISE = 2
_BLUR = 3  # each use of randomness tosses its own coins
_TRAINING = Phase(epochs=20, batch_size=128, rate=1e-4)


class EnergyNet(nn.Module):
    """[N, C, H, W] -> [N]: three convolutions, the last two halving the picture, and the mean of a linear layer."""

    def __init__(self, channels: int = 3, *, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ELU()]
        layers += [nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ELU()]
        layers += [nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1), nn.ELU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(4 * width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        energy: Tensor = self.layers(x).flatten(1).sum(1)
        return energy


class EBMPurifier(Purifier):
    """x_{t+1} = x_t - noise^2 / 2 grad U(x_t) + noise n_t, n_t ~ N(0, 1), and the mean of f(x_T) over `runs` runs.

    Langevin sampling from exp(-U), which forgets where it began (Hill et al. 2021, Stochastic security). The image may leave the
    box, as there. The many small steps need neither BPDA nor memory: `Checkpointed()` at `purify` runs each again.
    """

    def __init__(
        self,
        net: nn.Module,
        energy: nn.Module,
        *,
        steps: int = 1500,
        runs: int = 150,
        noise: float = 0.01,
    ) -> None:
        super().__init__(net, steps)
        if runs < 1 or noise < 0:
            raise ValueError(
                f"EBMPurifier needs runs >= 1 and noise >= 0, got runs={runs} and noise={noise}."
            )
        if energy.training:
            raise ValueError("EBMPurifier was given an energy in training mode. Call its eval().")
        self.energy = energy
        self.runs = runs
        self.noise = noise
        self.random = noise > 0 and steps > 0

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def answer(states: tuple[Tensor, ...]) -> Tensor:
            return torch.stack([self.net(v) for v in states]).mean(0)

        return shown(
            zip(*(self._run(x, ctx) for _ in range(self.runs)), strict=True),
            answer,
            self.steps,
            ctx,
        )

    def _run(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return langevin(self.energy, v, ctx.randn_like(v), self.noise)

        return walk(step, x, self.steps, ctx)

    def fit(
        self,
        x: Tensor,
        *,
        phase: Phase = _TRAINING,
        steps: int = 50,
        blur: float = 0.03,
        weight: float = 0.01,
        seed: int = 0,
    ) -> EBMPurifier:
        """The same with an energy that has learned to be low at x and high where its own short walks end, by Adam.

        mean U(x + blur n) - mean U(x-) + weight (U(x)^2 + U(x-)^2), x- after `steps` Langevin steps from uniform noise: maximum
        likelihood with short runs (Nijkamp et al. 2019). The last term keeps energies near zero.
        """
        energy = copy.deepcopy(self.energy).train()
        optimizer = torch.optim.Adam(energy.parameters(), lr=phase.rate)

        def losses(batch: Batch) -> Tensor:
            here = x[batch.rows] + blur * batch.keys.fold_in(_BLUR).normal(
                tuple(x.shape[1:]), x.dtype
            )
            low = energy(here)
            high = energy(_dreamt(energy, batch.keys, x, steps, self.noise))
            return cast(Tensor, low - high + weight * (low.square() + high.square()))

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return EBMPurifier(
            self.net, energy.eval(), steps=self.steps, runs=self.runs, noise=self.noise
        )


def langevin(energy: nn.Module, x: Tensor, n: Tensor, noise: float) -> Tensor:
    """One step: x - noise^2 / 2 grad U(x) + noise n."""
    return x - noise**2 / 2 * slope(energy, x) + noise * n


def _dreamt(energy: nn.Module, keys: Keys, like: Tensor, steps: int, noise: float) -> Tensor:
    """Where walks from uniform noise end; no gradient comes through them."""
    shape = tuple(like.shape[1:])
    with torch.no_grad():
        v = keys.fold_in(_NOISE).uniform(shape, like.dtype)
        for t in range(steps):
            v = langevin(energy, v, keys.fold_in(_STEP).fold_in(t).normal(shape, like.dtype), noise)
    return v
