"""Adaptive denoising purification: noise, then a few steps along a score network."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Purifier, shown
from saddlepoint.zoo.adaptive.learning import Batch, Phase, minimize, seeded

_LEVEL = 1
_NOISE = 2


class AdaptiveDenoising(Purifier):
    """x_0 = clip(x + noise n), x_{t+1} = clip(x_t + a_t s(x_t)), and the mean of softmax f(x_T) over `runs` runs.

    Yoon et al. 2021; Croce et al. 2022, Sec. 3.9, Eq. 8-9. The step a = clip(share probe / (1 - c), *limits) looks how the score
    turns along itself, c = <s(x), s(x + probe s(x))> / <s(x), s(x)>: for s(x) = -K x it is share / K. A run of a row ends once a <=
    stop, and where there is no score at all (the released code makes that a 0/0).

    As in the released code x_0 is squeezed onto the grid that the score network was trained on, 255/256 x + 1/512, and stretched
    back after every step, not once; and the score is that of unit noise, s(x + sigma n) = -n, whatever sigma is. There a batch goes
    on until its last row has ended, and rows that have ended are stretched along: `coupled=False` leaves them alone.

    Views are log-probabilities, apart from `purify/0`. Inside `purify` the noise and the step size are sites of their own, `noise`
    and `step size`: the attack of Croce et al. has no gradient through either (`BPDA()` for the first, `constant` for the second).
    """

    def __init__(
        self,
        net: nn.Module,
        score: nn.Module,
        *,
        steps: int = 10,
        runs: int = 10,
        noise: float = 0.25,  # standard deviation, in units of the input
        share: float = 0.05,
        probe: float = 1e-3,
        limits: tuple[float, float] = (1e-5, 0.1),
        stop: float = 1e-3,
        coupled: bool = True,
    ) -> None:
        super().__init__(net, steps)
        if runs < 1 or not 0 < limits[0] <= limits[1]:
            raise ValueError(
                f"AdaptiveDenoising needs runs >= 1 and limits with 0 < low <= high, got runs={runs} and limits={limits}."
            )
        if score.training:
            raise ValueError(
                "AdaptiveDenoising was given a score network in training mode. Call its eval()."
            )
        self.score = score
        self.runs = runs
        self.noise = noise
        self.share = share
        self.probe = probe
        self.limits = limits
        self.stop = stop
        self.random = noise > 0 and steps > 0
        self.coupled = coupled and steps > 0

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def answer(states: tuple[Tensor, ...]) -> Tensor:
            if states[0] is x:
                plain: Tensor = self.net(x)
                return plain
            said = torch.stack([self.net(v).log_softmax(1) for v in states])  # [S, N, C]
            return said.logsumexp(0) - math.log(self.runs)

        return shown(
            zip(*(self._run(x, ctx) for _ in range(self.runs)), strict=True),
            answer,
            self.steps,
            ctx,
        )

    def _run(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        yield x
        for t in range(self.steps):
            if alive.any():
                noted: list[
                    Tensor
                ] = []  # a step run again, in a backward pass, notes the same again
                x = ctx.through("purify", partial(self._step, t, alive, noted, ctx), x)
                alive = noted[0]
            yield x

    def _step(self, t: int, alive: Tensor, noted: list[Tensor], ctx: Context, v: Tensor) -> Tensor:
        if t == 0:
            v = 255 / 256 * ctx.through("noise", partial(self._noisy, ctx), v) + 1 / 512
        g = self.score(v)
        a = ctx.through("step size", partial(self._size, g), v)
        alive = alive & (a > self.stop)
        noted.append(alive)
        moved = (256 / 255 * (v + per_example(torch.where(alive, a, 0.0), v) * g) - 1 / 510).clamp(
            0, 1
        )
        if self.coupled:
            return moved if alive.any() else v
        return torch.where(per_example(alive, v), moved, v)

    def _noisy(self, ctx: Context, v: Tensor) -> Tensor:
        return (v + self.noise * ctx.randn_like(v)).clamp(0, 1)

    def _size(self, g: Tensor, v: Tensor) -> Tensor:
        """[N] clip(share probe / (1 - c), *limits); 0 without a score. Divisions stay finite, and so do their gradients."""
        low, high = self.limits
        length = _dot(g, g)
        turned = _dot(g, self.score(v + self.probe * g))
        gap = 1 - turned / torch.where(length > 0, length, 1.0)
        size = (self.share * self.probe / gap.clamp(min=self.share * self.probe / high)).clamp(
            min=low
        )
        return torch.where(
            length > 0, torch.where(gap >= 0, size, low), 0.0
        )  # a score that grows along itself: as far as known

    def fit(
        self,
        x: Tensor,
        *,
        levels: tuple[float, float] = (0.01, 1.0),
        epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-4,
        seed: int = 0,
    ) -> AdaptiveDenoising:
        """The same with a score network that has learned to see noise on x, by Adam and denoising score matching.

        mean_i (s(x + sigma n)_i + n_i)^2 / 2 (Vincent 2011; weighted by sigma^2 as in Song & Ermon 2020), log sigma uniform between
        the levels. The released network learned 232 of them from 0.01 to 50, of which the upper ones serve to generate images.
        """
        low, high = levels
        if not 0 < low <= high:
            raise ValueError(f"noise levels are two numbers with 0 < low <= high, got {levels}.")
        score = copy.deepcopy(self.score).train()
        optimizer = torch.optim.Adam(score.parameters(), lr=learning_rate)

        def losses(batch: Batch) -> Tensor:
            here = x[batch.rows]
            sigma = low * (high / low) ** batch.keys.fold_in(_LEVEL).uniform((), x.dtype)
            n = batch.keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
            missed: Tensor = score(here + per_example(sigma, here) * n) + n
            return missed.square().flatten(1).mean(1) / 2

        with seeded(seed):
            minimize(
                losses, optimizer, len(x), Phase(epochs, batch_size, learning_rate), seed, x.device
            )
        return AdaptiveDenoising(
            self.net, score.eval(), steps=self.steps, runs=self.runs, noise=self.noise, share=self.share, probe=self.probe,
            limits=self.limits, stop=self.stop, coupled=self.coupled,
        )  # fmt: skip


def constant(x: Tensor) -> Tensor:
    """[N] zeros: a surrogate that lets no gradient through a site that gives one number per row."""
    return x.new_zeros(len(x))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
