"""Bootstrap confidence intervals for any statistic of the outcomes, by resampling the examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.phrases import percent, relative


class Estimate(NamedTuple):
    """A number and its confidence interval over the choice of images.

    The interval covers other images from the same distribution. It does not cover stronger attacks.
    """

    value: float
    low: float
    high: float
    n: int  # independent units from which it was estimated

    def __str__(self) -> str:
        interval = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        value = percent(self.value) if 0 <= self.value <= 1 else relative(self.value, 1)
        return f"{value} ({interval}, n = {self.n})"


def bootstrap(
    statistic: Callable[[Tensor], float],
    n: int,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """A statistic of n rows with its percentile bootstrap interval (Efron 1979).

    Args:
        statistic: maps row indices [M] to a number.
        n: number of rows.
        draws: bootstrap samples, each of n rows with replacement.
        level: confidence level of the interval.
        seed: seed of the samples.

    Returns:
        The statistic of all rows and the interval of its values over the samples.

    Raises:
        ValueError: there are no rows, or fewer than two draws.
    """
    if n < 1 or draws < 2:
        raise ValueError(
            f"a bootstrap needs at least one example and two draws, got n={n}, draws={draws}."
        )
    generator = torch.Generator().manual_seed(seed)
    samples = [statistic(torch.randint(n, (n,), generator=generator)) for _ in range(draws)]
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.tensor(samples, dtype=torch.float64).quantile(tails).tolist()
    return Estimate(statistic(torch.arange(n)), low, high, n)


def mean_of(values: Tensor, *, draws: int = 1000, level: float = 0.95, seed: int = 0) -> Estimate:
    """The mean of `values`, [N], with its bootstrap interval; other arguments as in `bootstrap`."""
    samples = values.double().cpu()
    return bootstrap(
        lambda rows: float(samples[rows].mean()),
        len(samples),
        draws=draws,
        level=level,
        seed=seed,
    )
