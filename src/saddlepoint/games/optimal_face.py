"""Selects one of several optimal strategies of a matrix game.

The optimal strategies of the defender form a polytope. Where it is not a single point, a linear
program returns an arbitrary vertex: of a game in which every attack always succeeds, for example,
the first column, however low its clean accuracy is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

_TIE = 1e-9  # a smaller loss of a mean that is already maximal is a rounding error
_TRACE = 1e-6  # a smaller probability is no part of a strategy if it can be left out
_SECONDS = 5.0  # for the smallest support; then the strategy found so far is used


def preferred_strategy(
    payoff: np.ndarray, optimal: np.ndarray, prefer: Sequence[np.ndarray]
) -> np.ndarray:
    """The optimal strategy with the highest preferences, in order, and the smallest support.

    Args:
        payoff: the defender's accuracy, [A, D].
        optimal: an optimal strategy of the defender, [D].
        prefer: numbers per column, [D] each, of which the mean over the strategy is maximized.
    """
    rows = payoff
    least = np.full(len(payoff), (payoff @ optimal).min())
    best = optimal
    for numbers in prefer:
        found = _maximize(numbers, rows, least)
        if found is not None and numbers @ found > numbers @ best + _TIE:
            best = found
        rows = np.vstack([rows, numbers])
        least = np.r_[least, numbers @ best]
    return _smallest_support(rows, least, best)


def _maximize(numbers: np.ndarray, rows: np.ndarray, least: np.ndarray) -> np.ndarray | None:
    """The strategy with the highest mean of `numbers` among those with rows @ s >= least.

    None if the solver finds none, or one that violates a constraint by more than rounding.
    """
    found = linprog(
        c=-numbers,
        A_ub=-rows,
        b_ub=-least + _TIE / 10,
        A_eq=np.ones((1, len(numbers))),
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
        options={
            "primal_feasibility_tolerance": _TIE / 10,
            "dual_feasibility_tolerance": _TIE / 10,
        },
    )
    if found.x is None:
        return None
    # Constraints have a slack, which the solver uses for traces of other columns.
    for smallest in (_TRACE, 0.0):
        positive = np.where(found.x > smallest, found.x, 0.0)
        strategy: np.ndarray = positive / positive.sum()
        if (rows @ strategy >= least - _TIE).all():
            return strategy
    return None


def _smallest_support(rows: np.ndarray, least: np.ndarray, best: np.ndarray) -> np.ndarray:
    """A strategy with rows @ s >= least that plays as few columns as possible.

    A mixed-integer program: z_d = 1 if column d may be played, s_d <= z_d, minimize the sum of z.
    Its strategy is computed again on these columns, without the tolerances of integer programs.
    """
    columns = len(best)
    if (best > _TIE).sum() <= 1:
        return best
    nothing = np.zeros((len(rows), columns))
    found = milp(
        c=np.r_[np.zeros(columns), np.ones(columns)],
        integrality=np.r_[np.zeros(columns), np.ones(columns)],
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(np.hstack([rows, nothing]), least - _TIE / 10, np.inf),
            LinearConstraint(np.r_[np.ones(columns), np.zeros(columns)][None], 1, 1),
            LinearConstraint(np.hstack([np.eye(columns), -np.eye(columns)]), -np.inf, 0),
        ],
        options={"time_limit": _SECONDS},
    )
    if found.x is None:
        return best
    kept = found.x[columns:] > 0.5
    if kept.sum() >= (best > _TIE).sum():
        return best
    found_on_kept = _maximize(rows[:, kept].mean(0), rows[:, kept], least)
    if found_on_kept is None:
        return best
    strategy = np.zeros(columns)
    strategy[kept] = found_on_kept
    return strategy
