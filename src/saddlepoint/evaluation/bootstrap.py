"""Intervals for any reduction of the outcomes, by drawing the examples again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """A number, and the interval in which it would lie on other images of the same kind. It does not cover better attacks."""

    value: float
    low: float
    high: float
    n: int  # independent units behind it

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f}, n = {self.n})"


def bootstrap(
    statistic: Callable[[Tensor], float],
    n: int,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """statistic(rows) on all rows, and its percentiles over `draws` samples of n rows with replacement (Efron 1979)."""
    if n < 1 or draws < 2:
        raise ValueError(
            f"a bootstrap needs at least one example and two draws, got n={n}, draws={draws}."
        )
    generator = torch.Generator().manual_seed(seed)
    again = torch.tensor(
        [statistic(torch.randint(n, (n,), generator=generator)) for _ in range(draws)],
        dtype=torch.float64,
    )
    low, high = again.quantile(
        torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    ).tolist()
    return Estimate(statistic(torch.arange(n)), low, high, n)


def mean_of(values: Tensor, *, draws: int = 1000, level: float = 0.95, seed: int = 0) -> Estimate:
    """The mean of [N] numbers."""
    held = values.double().cpu()
    return bootstrap(
        lambda rows: float(held[rows].mean()), len(held), draws=draws, level=level, seed=seed
    )
