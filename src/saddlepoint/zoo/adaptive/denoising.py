"""Adaptive denoising purification: add noise, then follow a score network for a few steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.purification import Purifier, purification_trace
from saddlepoint.zoo.adaptive.validation import require_eval_mode

# Each use of randomness folds its own number into the keys.
_LEVEL = 1
_NOISE = 2


class AdaptiveDenoising(Purifier):
    """Add noise, follow a score network with adaptive step sizes, and average the predictions.

    x_0 = clip(x + noise n),  x_{t+1} = clip(x_t + a_t s(x_t)),  output: mean softmax f(x_T)

    over `runs` runs, with standard normal n and score network s (Yoon et al. 2021; Croce et al.
    2022, Sec. 3.9, Eq. 8-9). The step size is a = clip(share probe / (1 - c), *limits) with
    c = <s(x), s(x + probe s(x))> / <s(x), s(x)>, which measures how the score changes along
    itself; for s(x) = -K x it is a = share / K. An example stops moving in a run once a <= stop,
    or if its score is zero. (The released code computes 0/0 for a zero score.)

    As in the released code, x_0 is mapped to the grid on which the score network was trained,
    255/256 x + 1/512, and every step, not only the last one, applies the inverse map. Also as
    released, the score is that of unit noise: s(x + sigma n) = -n for all sigma. The released code
    runs a batch until its last example has stopped and keeps applying the inverse map to stopped
    examples; with `coupled=False` stopped examples are unchanged.

    The views are log-probabilities, except `purify/0`, which holds logits. Within `purify`, the
    noise and the step size are sites of their own, `noise` and `step size`. The attack of Croce et
    al. has no gradient through either: use `BPDA()` for `noise` and `BPDA(constant)` for
    `step size`.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        score: Score network [N, ...] -> [N, ...] in eval mode.
        steps: Maximal number of steps.
        runs: Number of runs with different noise.
        noise: Standard deviation of the noise, in units of the input.
        share: Factor of the step size.
        probe: Length at which the change of the score is measured.
        limits: Smallest and largest step size.
        stop: Step size at or below which an example stops.
        coupled: Whether stopped examples are processed as in the released code.
    """

    def __init__(
        self,
        net: nn.Module,
        score: nn.Module,
        *,
        steps: int = 10,
        runs: int = 10,
        noise: float = 0.25,
        share: float = 0.05,
        probe: float = 1e-3,
        limits: tuple[float, float] = (1e-5, 0.1),
        stop: float = 1e-3,
        coupled: bool = True,
    ) -> None:
        super().__init__(net, steps)
        if runs < 1 or not 0 < limits[0] <= limits[1]:
            raise ValueError(
                "AdaptiveDenoising needs runs >= 1 and limits (low, high) with 0 < low <= high, "
                f"got runs={runs} and limits={limits}."
            )
        require_eval_mode(score, role="score network", owner="AdaptiveDenoising")
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
        """Purify x and return log-probabilities, averaged over the runs, after every step."""

        def classify(states: tuple[Tensor, ...]) -> Tensor:
            if states[0] is x:
                logits: Tensor = self.net(x)
                return logits
            log_probabilities = torch.stack([self.net(v).log_softmax(1) for v in states])  # [S,N,C]
            return log_probabilities.logsumexp(0) - math.log(self.runs)

        states = zip(*(self._run(x, ctx) for _ in range(self.runs)), strict=True)
        return purification_trace(states, classify, self.steps, ctx)

    def _run(self, x: Tensor, ctx: Context) -> Iterator[Tensor]:
        """Yield x_0 to x_steps of one run."""
        moving = torch.ones(len(x), dtype=torch.bool, device=x.device)
        yield x
        for t in range(self.steps):
            if moving.any():
                # A step that is recomputed in a backward pass appends the same mask again.
                masks: list[Tensor] = []
                x = ctx.through("purify", partial(self._step, t, moving, masks, ctx), x)
                moving = masks[0]
            yield x

    def _step(self, t: int, moving: Tensor, masks: list[Tensor], ctx: Context, v: Tensor) -> Tensor:
        """Take one step and append the mask [N] of examples that are still moving to `masks`."""
        if t == 0:
            v = 255 / 256 * ctx.through("noise", partial(self._add_noise, ctx), v) + 1 / 512
        score = self.score(v)
        step_size = ctx.through("step size", partial(self._step_size, score), v)
        moving = moving & (step_size > self.stop)
        masks.append(moving)
        step = per_example(torch.where(moving, step_size, 0.0), v) * score
        moved = (256 / 255 * (v + step) - 1 / 510).clamp(0, 1)
        if self.coupled:
            return moved if moving.any() else v
        return torch.where(per_example(moving, v), moved, v)

    def _add_noise(self, ctx: Context, v: Tensor) -> Tensor:
        return (v + self.noise * ctx.randn_like(v)).clamp(0, 1)

    def _step_size(self, score: Tensor, v: Tensor) -> Tensor:
        """Return the step size [N]: clip(share probe / (1 - c), *limits), or 0 for a zero score.

        All divisions and their gradients are finite.
        """
        low, high = self.limits
        squared_norm = _dot(score, score)
        product = _dot(score, self.score(v + self.probe * score))
        gap = 1 - product / torch.where(squared_norm > 0, squared_norm, 1.0)
        scale = self.share * self.probe
        size = (scale / gap.clamp(min=scale / high)).clamp(min=low)
        # A score that grows along itself has a negative gap and takes the smallest step.
        size = torch.where(gap >= 0, size, low)
        return torch.where(squared_norm > 0, size, 0.0)

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
        """Train a copy of the score network by denoising score matching with Adam.

        The loss is mean_i (s(x + sigma n)_i + n_i)^2 / 2 (Vincent 2011; weighted by sigma^2 as in
        Song & Ermon 2020), with log sigma uniform between the logarithms of the two levels. The
        released network was trained at 232 levels from 0.01 to 50; the high levels serve to
        generate images.

        Args:
            x: [M, ...] training images.
            levels: Lowest and highest standard deviation of the noise, in units of the input.
            epochs: Number of passes over the images.
            batch_size: Upper bound of the batch size.
            learning_rate: Learning rate of Adam.
            seed: Seed of the order of the images and of all noise.

        Returns:
            A new defense with the trained score network.
        """
        low, high = levels
        if not 0 < low <= high:
            raise ValueError(f"fit needs levels (low, high) with 0 < low <= high, got {levels}.")
        score = copy.deepcopy(self.score).train()
        optimizer = torch.optim.Adam(score.parameters(), lr=learning_rate)

        def losses(batch: Batch) -> Tensor:
            images = x[batch.rows]
            sigma = low * (high / low) ** batch.keys.fold_in(_LEVEL).uniform((), x.dtype)
            n = batch.keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
            error: Tensor = score(images + per_example(sigma, images) * n) + n
            return error.square().flatten(1).mean(1) / 2

        phase = Phase(epochs, batch_size, learning_rate)
        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return self._with_score(score.eval())

    def _with_score(self, score: nn.Module) -> AdaptiveDenoising:
        """Return the same defense with another score network."""
        return AdaptiveDenoising(
            self.net,
            score,
            steps=self.steps,
            runs=self.runs,
            noise=self.noise,
            share=self.share,
            probe=self.probe,
            limits=self.limits,
            stop=self.stop,
            coupled=self.coupled,
        )


def constant(x: Tensor) -> Tensor:
    """Return zeros [N]: a BPDA surrogate without gradient for sites that return one value per row.

    Use it as `BPDA(constant)`.
    """
    return x.new_zeros(len(x))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
