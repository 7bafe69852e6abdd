"""Zero-sum games: rows are the attacker's actions, columns the defender's, entries the defender's accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

_TIE = 1e-9  # of the spread of the numbers compared
_CERTIFIED = 1e-6  # a gap above this means that the linear program was not solved


@dataclass(frozen=True)
class Equilibrium:
    """Optimal mixes of both players, and how far they can be from optimal.

    `gap` is what the two could gain by deviating, added up: max_d (t^T M)_d - min_a (M s)_a. It certifies the solution without
    trusting the solver: the value of the game lies between the two.
    """

    attacker: Tensor  # [A]
    defender: Tensor  # [D]
    value: float  # the accuracy that the defender is sure of: min_a (M s)_a
    gap: float

    @property
    def support(self) -> tuple[int, ...]:
        """Columns that the defender plays."""
        return tuple(int(d) for d in (self.defender > _TIE).nonzero()[:, 0])


def solve(payoff: Tensor) -> Equilibrium:
    """max_s min_a (M s)_a over the simplex, by linear programming (HiGHS); its dual is the attacker's mix.

    max v  subject to  M s >= v 1,  1^T s = 1,  s >= 0  (Xu et al., Eq. 8); the multipliers of M s >= v 1 solve Eq. 9.
    """
    m = _matrix(payoff)
    rows, columns = m.shape
    s, multipliers = _bounded(m, np.zeros(rows, dtype=int), 1)
    t = _simplex(multipliers)
    lower = float((m @ s).min())
    upper = float((t @ m).max())
    if upper - lower > _CERTIFIED * max(1.0, float(np.abs(m).max())):
        raise RuntimeError(
            f"the mixes found for a {rows} x {columns} game leave a gap of {upper - lower:.3g}; they are no solution."
        )
    return Equilibrium(torch.from_numpy(t), torch.from_numpy(s), lower, upper - lower)


def best_response(payoff: Tensor, defender: Tensor) -> Tensor:
    """[A]: uniform over the rows on which a defender who mixes so is least accurate (Xu et al., Eq. 6), ties within rounding."""
    expected = payoff.double() @ mix(defender, payoff.shape[1]).to(payoff.device)
    spread = float(expected.amax() - expected.amin())
    tied = expected <= expected.amin() + _TIE * spread
    return tied.double() / tied.sum()


def mix(probabilities: Tensor, count: int) -> Tensor:
    """A checked probability vector over `count` actions, in double precision."""
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    if p.shape != (count,):
        raise ValueError(
            f"a strategy over {count} actions needs {count} probabilities, got shape {list(p.shape)}."
        )
    if not bool((p >= 0).all()) or abs(float(p.sum()) - 1) > 1e-6:
        raise ValueError(
            f"probabilities must not be negative and must sum to one, got a least of {float(p.amin()):.3g} and a sum of "
            f"{float(p.sum()):.6g}. Divide them by their sum."
        )
    return p


@dataclass(frozen=True)
class PerExample:
    """The defender's best mix against an attacker who picks a row for every example after seeing the mix.

    `gap` certifies it as in `Equilibrium`: the attacker's mixes, one per example, hold any defender to at most value + gap.
    """

    defender: Tensor  # [D]
    value: float
    gap: float


def solve_per_example(correct: Tensor) -> PerExample:
    """max_s mean_n min_a sum_d s_d correct[a, d, n] as one linear program over the outcomes [A, D, N].

    One variable t_n = min_a (...) per example, one constraint per row of it. Few of them bind, so they are added as they are
    violated: each round solves with those at hand and adds, for every example, the row on which the mix found does worst.
    """
    outcomes = correct.double().cpu().numpy().transpose(2, 0, 1)  # [N, A, D]
    n, _, columns = outcomes.shape
    everyone = np.arange(n)
    s = np.full(columns, 1 / columns)
    multipliers = np.zeros(0)
    example = np.zeros(0, dtype=int)
    row = np.zeros(0, dtype=int)  # of each constraint at hand
    while True:
        worst = (outcomes @ s).argmin(1)  # [N]
        lacking = ~_held(example, row, everyone, worst)
        value = float((outcomes[everyone, worst] @ s).mean())
        bound = _bound(outcomes, example, row, multipliers)
        if bound - value < _CERTIFIED / 1000 or not lacking.any():
            return PerExample(torch.from_numpy(s), value, bound - value)
        example = np.r_[example, everyone[lacking]]
        row = np.r_[row, worst[lacking]]
        s, multipliers = _bounded(outcomes[example, row], example, n)


def _bounded(rows: np.ndarray, example: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The best mix against some rows [K, D] of some examples [K], and the multipliers of the rows.

    max mean_n t_n  subject to  t_n <= rows_k s  for every k with example_k = n,  1^T s = 1,  s >= 0.
    """
    (count, columns) = rows.shape
    (k, d) = np.nonzero(rows)
    places = (np.r_[k, np.arange(count)], np.r_[d, columns + example])
    table: Any = coo_array(
        (np.r_[-rows[k, d], np.ones(count)], places), shape=(count, columns + n)
    )  # linprog's types know no sparse
    found = linprog(
        c=np.r_[np.zeros(columns), np.full(n, -1 / n)],
        A_ub=table,
        b_ub=np.zeros(count),
        A_eq=np.r_[np.ones(columns), np.zeros(n)][None],
        b_eq=[1.0],
        bounds=[(0, None)] * columns + [(None, None)] * n,
        method="highs",
    )
    if found.x is None:
        raise RuntimeError(
            f"the linear program over {n} examples and {columns} answers was not solved: {found.message}"
        )
    return _simplex(found.x[:columns]), -found.ineqlin.marginals


def _bound(
    outcomes: np.ndarray, example: np.ndarray, row: np.ndarray, multipliers: np.ndarray
) -> float:
    """What no defender exceeds against an attacker who mixes the rows of every example in these proportions."""
    if not len(multipliers):
        return np.inf
    weights = np.maximum(multipliers, 0.0)
    total = np.bincount(example, weights, len(outcomes))
    assert (total > 0).all(), "every example has a row, and its multipliers sum to 1 / n"
    return float((weights / total[example] @ outcomes[example, row]).max() / len(outcomes))


def _held(
    example: np.ndarray, row: np.ndarray, everyone: np.ndarray, worst: np.ndarray
) -> np.ndarray:
    """[N] is the constraint (example, worst row) at hand already?"""
    held = set(zip(example.tolist(), row.tolist(), strict=True))
    return np.array([pair in held for pair in zip(everyone.tolist(), worst.tolist(), strict=True)])


def least_per_example(correct: Tensor, defender: Tensor) -> Tensor:
    """[N] how often this mix is right where the attacker picks the worst row per example: min_a sum_d s_d correct[a, d, n]."""
    s = mix(defender, correct.shape[1]).to(correct.device)
    return torch.einsum("d,adn->an", s, correct.double()).amin(0)


def _simplex(weights: np.ndarray) -> np.ndarray:
    """Rounding below zero taken away, and a sum of one."""
    positive: np.ndarray = np.maximum(weights, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _matrix(payoff: Tensor) -> np.ndarray:
    if payoff.ndim != 2 or 0 in payoff.shape:
        raise ValueError(
            f"a game needs a matrix [attacker's actions, defender's actions], got shape {list(payoff.shape)}."
        )
    if not bool(payoff.isfinite().all()):
        raise ValueError("every entry of a game must be a finite number.")
    matrix: np.ndarray = payoff.detach().double().cpu().numpy()
    return matrix
