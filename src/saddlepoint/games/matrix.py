"""Zero-sum matrix games: rows are attacker actions, columns defender actions, entries accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.games.optimal_face import preferred_strategy

_TIE = 1e-9  # relative to the spread of the compared numbers
_AT_ONCE = 64  # examples
_CERTIFIED = 1e-6  # a larger gap means that the linear program was not solved


@dataclass(frozen=True)
class Equilibrium:
    """Optimal mixed strategies of both players, with a certificate.

    `gap` is the sum of what both players can gain if they deviate,
    max_d (t^T M)_d - min_a (M s)_a. The value of the game lies between these two numbers, so the
    gap certifies the solution without trusting the solver.
    """

    attacker: Tensor  # [A] mixed strategy t
    defender: Tensor  # [D] mixed strategy s
    value: float  # the accuracy that the defender guarantees: min_a (M s)_a
    gap: float

    @property
    def support(self) -> tuple[int, ...]:
        """The columns that the defender plays with positive probability."""
        return tuple(int(d) for d in (self.defender > _TIE).nonzero()[:, 0])


def solve(payoff: Tensor, prefer: Sequence[Tensor] = ()) -> Equilibrium:
    """Solve a matrix game by linear programming (HiGHS).

    max v  subject to  M s >= v 1,  1^T s = 1,  s >= 0  (Xu et al., Eq. 8). The multipliers of
    M s >= v 1 are the attacker's strategy (Eq. 9).

    Args:
        payoff: the defender's accuracy M, [A, D].
        prefer: which of several optimal strategies of the defender is returned: numbers per column,
            [D] each. The first mean over the strategy is maximized, then the second, and so on;
            then the number of columns that are played is minimized. Default: any optimal strategy.

    Raises:
        ValueError: `payoff` is not a matrix of finite numbers.
        RuntimeError: the linear program was not solved.
    """
    m = _matrix(payoff)
    rows, columns = m.shape
    s, multipliers = _solve_constraints(m, np.zeros(rows, dtype=int), 1)
    t = _normalized(multipliers)
    if prefer:
        s = preferred_strategy(m, s, [np.asarray(one.double().cpu()) for one in prefer])
    lower = float((m @ s).min())
    upper = float((t @ m).max())
    if upper - lower > _CERTIFIED * max(1.0, float(np.abs(m).max())):
        raise RuntimeError(
            f"the strategies found for a {rows} x {columns} game leave a gap of "
            f"{upper - lower:.3g}, so they are not a solution."
        )
    return Equilibrium(torch.from_numpy(t), torch.from_numpy(s), lower, upper - lower)


def best_response(payoff: Tensor, defender: Tensor) -> Tensor:
    """The attacker's best response to a mixed strategy of the defender (Xu et al., Eq. 6).

    Args:
        payoff: the defender's accuracy, [A, D].
        defender: mixed strategy, [D].

    Returns:
        [A] uniform over the rows with the lowest expected accuracy, ties up to rounding included.
    """
    expected = payoff.double() @ as_distribution(defender, payoff.shape[1]).to(payoff.device)
    spread = float(expected.amax() - expected.amin())
    tied = expected <= expected.amin() + _TIE * spread
    return tied.double() / tied.sum()


def as_distribution(probabilities: Tensor, count: int) -> Tensor:
    """A checked probability vector over `count` actions, [count], in double precision.

    Raises:
        ValueError: the shape is wrong, an entry is negative, or the sum is not one.
    """
    p = torch.as_tensor(probabilities, dtype=torch.float64)
    if p.shape != (count,):
        raise ValueError(
            f"a strategy over {phrases.count(count, 'action')} needs "
            f"{phrases.count(count, 'probability')}, got shape {list(p.shape)}."
        )
    if not bool((p >= 0).all()) or abs(float(p.sum()) - 1) > 1e-6:
        raise ValueError(
            "probabilities must not be negative and must sum to one, got a minimum of "
            f"{float(p.amin()):.3g} and a sum of {float(p.sum()):.6g}. Divide them by their sum."
        )
    return p


@dataclass(frozen=True)
class PerExample:
    """The defender's best mixed strategy against an attacker that chooses a row per example.

    The attacker knows the strategy, but not the column that is drawn. `gap` is a certificate as in
    `Equilibrium`: the attacker's mixed strategies, one per example, limit every defender to at most
    value + gap.
    """

    defender: Tensor  # [D]
    value: float
    gap: float


def solve_per_example(correct: Tensor) -> PerExample:
    """max_s mean_n min_a sum_d s_d correct[a, d, n] as a linear program.

    The program has one variable t_n = min_a (...) per example and one constraint per example and
    row. Few constraints are active, so they are added when they are violated: each iteration
    solves the program with the constraints so far and then adds, for every example, the row with
    the lowest accuracy against the new strategy.

    Args:
        correct: outcomes, [A, D, N], as fractions or bool values.
    """
    outcomes = correct.cpu().numpy().transpose(2, 0, 1)  # [N, A, D]
    n, _, columns = outcomes.shape
    examples = np.arange(n)
    s = np.full(columns, 1 / columns)
    multipliers = np.zeros(0)
    example = np.zeros(0, dtype=int)  # [K] example of each constraint so far
    row = np.zeros(0, dtype=int)  # [K] row of each constraint so far
    while True:
        worst = _accuracies(outcomes, s).argmin(1)  # [N]
        new = ~_known(example, row, examples, worst)
        value = float((outcomes[examples, worst] @ s).mean())
        bound = _upper_bound(outcomes, example, row, multipliers)
        if bound - value < _CERTIFIED / 1000 or not new.any():
            return PerExample(torch.from_numpy(s), value, bound - value)
        example = np.r_[example, examples[new]]
        row = np.r_[row, worst[new]]
        s, multipliers = _solve_constraints(outcomes[example, row].astype(float), example, n)


def _accuracies(outcomes: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The accuracy of a mixed strategy [D] per example and row, [N, A].

    Some examples at a time: outcomes may be bool, and take eight times the memory as numbers.
    """
    parts = np.array_split(outcomes, -(-len(outcomes) // _AT_ONCE))
    return np.concatenate([part.astype(float) @ s for part in parts])


def least_per_example(correct: Tensor, defender: Tensor) -> Tensor:
    """The expected accuracy per example if the attacker chooses the worst row for each.

    Args:
        correct: outcomes, [A, D, N].
        defender: mixed strategy, [D].

    Returns:
        [N] min_a sum_d s_d correct[a, d, n].
    """
    s = as_distribution(defender, correct.shape[1]).to(correct.device)
    return torch.einsum("d,adn->an", s, correct.double()).amin(0)


def _solve_constraints(
    rows: np.ndarray, example: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best mixed strategy against some rows, and the multipliers of the rows.

    max mean_n t_n  subject to  t_n <= rows_k s  for every k with example_k = n,
    1^T s = 1,  s >= 0.

    Args:
        rows: accuracy of all columns in each constraint, [K, D].
        example: the example of each constraint, [K].
        n: number of examples.
    """
    count, columns = rows.shape
    k, d = np.nonzero(rows)
    entries = np.r_[-rows[k, d], np.ones(count)]
    indices = (np.r_[k, np.arange(count)], np.r_[d, columns + example])
    # The type stubs of linprog do not know sparse matrices.
    table: Any = coo_array((entries, indices), shape=(count, columns + n))
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
            f"the linear program over {phrases.count(n, 'example')} and "
            f"{phrases.count(columns, 'column')} was not solved: {found.message}"
        )
    return _normalized(found.x[:columns]), -found.ineqlin.marginals


def _upper_bound(
    outcomes: np.ndarray, example: np.ndarray, row: np.ndarray, multipliers: np.ndarray
) -> float:
    """The highest accuracy of any defender against an attacker that mixes rows per example.

    The multipliers, normalized per example, are the attacker's mixed strategies.
    """
    if not len(multipliers):
        return np.inf
    weights = np.maximum(multipliers, 0.0)
    total = np.bincount(example, weights, len(outcomes))
    assert (total > 0).all(), "every example has a row, and its multipliers sum to 1 / n"
    return float((weights / total[example] @ outcomes[example, row]).max() / len(outcomes))


def _known(
    example: np.ndarray, row: np.ndarray, examples: np.ndarray, worst: np.ndarray
) -> np.ndarray:
    """Whether the constraint (example, worst row) exists already, [N] bool."""
    known = set(zip(example.tolist(), row.tolist(), strict=True))
    pairs = zip(examples.tolist(), worst.tolist(), strict=True)
    return np.array([pair in known for pair in pairs])


def _normalized(weights: np.ndarray) -> np.ndarray:
    """The weights without negative rounding errors, with a sum of one."""
    positive: np.ndarray = np.maximum(weights, 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(len(weights), 1 / len(weights))


def _matrix(payoff: Tensor) -> np.ndarray:
    if payoff.ndim != 2 or 0 in payoff.shape:
        raise ValueError(
            "a game needs a matrix [attacker actions, defender actions], "
            f"got shape {list(payoff.shape)}."
        )
    if not bool(payoff.isfinite().all()):
        raise ValueError("every entry of a game must be a finite number.")
    matrix: np.ndarray = payoff.detach().double().cpu().numpy()
    return matrix
