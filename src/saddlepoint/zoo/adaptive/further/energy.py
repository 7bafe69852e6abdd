"""Purification by Langevin sampling from an energy-based model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Trace
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient
from saddlepoint.zoo.adaptive.purification import Purifier, iterates, purification_trace
from saddlepoint.zoo.adaptive.validation import require_eval_mode

# Each use of randomness folds its own number into the keys.
_STEP = 1
_START = 2
_DATA_NOISE = 3
_TRAINING = Phase(epochs=20, batch_size=128, rate=1e-4)


class EnergyNet(nn.Module):
    """Energy [N, C, H, W] -> [N]: three convolutions, and the sum of a 1 x 1 convolution.

    The last two of the three convolutions halve the resolution.

    Args:
        channels: Number of image channels C.
        width: Number of hidden channels at full resolution.
    """

    def __init__(self, channels: int = 3, *, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ELU()]
        layers += [nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ELU()]
        layers += [nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1), nn.ELU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(4 * width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the energy [N] of images x."""
        energy: Tensor = self.layers(x).flatten(1).sum(1)
        return energy


class EBMPurifier(Purifier):
    """Run Langevin sampling from the image and average the logits over `runs` runs.

    x_{t+1} = x_t - noise^2 / 2 grad U(x_t) + noise n_t  with standard normal n_t; output: mean
    f(x_T). This is Langevin sampling from exp(-U), which forgets its start (Hill
    et al. 2021, Stochastic security). As there, the image may leave the box. For the many small
    steps, `Checkpointed()` at `purify` computes exact gradients in little memory by recomputing
    each step, so BPDA is not needed.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        energy: Energy U: [N, ...] -> [N] in eval mode.
        steps: Number of Langevin steps.
        runs: Number of runs with different noise.
        noise: Standard deviation of the noise, in units of the input.
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
        require_eval_mode(energy, role="energy network", owner="EBMPurifier")
        self.energy = energy
        self.runs = runs
        self.noise = noise
        self.random = noise > 0 and steps > 0

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits, averaged over the runs, after every step."""

        def classify(states: tuple[Tensor, ...]) -> Tensor:
            return torch.stack([self.net(v) for v in states]).mean(0)

        states = zip(*(self._run(x, ctx) for _ in range(self.runs)), strict=True)
        return purification_trace(states, classify, self.steps, ctx)

    def _run(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        """Yield x_0 to x_steps of one run."""

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return langevin_step(self.energy, v, ctx.randn_like(v), self.noise)

        return iterates(step, x, self.steps, ctx)

    def fit(
        self,
        x: Tensor,
        *,
        phase: Phase = _TRAINING,
        steps: int = 50,
        data_noise: float = 0.03,
        weight: float = 0.01,
        seed: int = 0,
    ) -> EBMPurifier:
        """Train a copy of the energy with Adam by maximum likelihood with short MCMC runs.

        The loss is mean U(x+) - mean U(x-) + weight (U(x+)^2 + U(x-)^2), where x+ is a training
        image with noise and x- is the end of a Langevin run from uniform noise (Nijkamp et al.
        2019). The last term keeps the energies near zero.

        Args:
            x: [M, ...] training images.
            phase: Epochs, batch size and learning rate.
            steps: Number of Langevin steps to x-.
            data_noise: Standard deviation of the noise on training images.
            weight: Weight of the last term.
            seed: Seed of the minibatches and all noise.

        Returns:
            A new defense with the trained energy.
        """
        energy = copy.deepcopy(self.energy).train()
        optimizer = torch.optim.Adam(energy.parameters(), lr=phase.rate)

        def losses(batch: Batch) -> Tensor:
            n = batch.keys.fold_in(_DATA_NOISE).normal(tuple(x.shape[1:]), x.dtype)
            low = energy(x[batch.rows] + data_noise * n)
            high = energy(_short_run_samples(energy, batch.keys, x, steps, self.noise))
            return cast(Tensor, low - high + weight * (low.square() + high.square()))

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return EBMPurifier(
            self.net, energy.eval(), steps=self.steps, runs=self.runs, noise=self.noise
        )


def langevin_step(energy: nn.Module, x: Tensor, n: Tensor, noise: float) -> Tensor:
    """Return x - noise^2 / 2 grad U(x) + noise n."""
    return x - noise**2 / 2 * input_gradient(energy, x) + noise * n


def _short_run_samples(
    energy: nn.Module, keys: Keys, like: Tensor, steps: int, noise: float
) -> Tensor:
    """Return the ends of Langevin runs from uniform noise, without gradients."""
    shape = tuple(like.shape[1:])
    with torch.no_grad():
        v = keys.fold_in(_START).uniform(shape, like.dtype)
        for t in range(steps):
            n = keys.fold_in(_STEP).fold_in(t).normal(shape, like.dtype)
            v = langevin_step(energy, v, n, noise)
    return v
