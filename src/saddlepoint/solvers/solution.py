"""The results of a solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from saddlepoint.solvers.inverse import Inverse


class Status(IntEnum):
    """How the solve of one example ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    DIVERGED = 2  # the residual grew far beyond the scale of f(z_0)
    NON_FINITE = 3  # a state, or f of it, contains NaN or infinity


class SolveInfo(NamedTuple):
    """A summary of a solve, without its states."""

    residual: Tensor  # [N] of the best state
    evaluations: Tensor  # [N] int64, evaluations of f
    status: Tensor  # [N] int8, see Status


@dataclass(frozen=True)
class Solution:
    """The result of one solve of a batch.

    After an example has converged, its later states repeat its last state. After it has failed,
    they repeat its finite state of lowest residual.
    """

    best: Tensor  # [N, ...] the state of lowest residual of each example
    states: Mapping[int, Tensor]  # n -> z_n [N, ...], for the requested steps
    blend: Tensor | None  # [N, ...] sum_n w_n z_n, or None without weights
    residuals: Tensor  # [T, N] of z_1..z_T
    residual: Tensor  # [N] of `best`; infinite where f(z_0) is not finite
    evaluations: Tensor  # [N] int64, evaluations of f per example
    status: Tensor  # [N] int8, see Status
    inverse: Inverse | None  # the inverse that Broyden built, if it was requested
    following: Tensor | None = None  # [N, ...] f(best), if it was requested

    @property
    def steps_taken(self) -> Tensor:
        """[N] steps until the example stopped; the evaluation of the start is not a step."""
        return self.evaluations - 1

    def has_status(self, status: Status) -> Tensor:
        """[N] bool: the examples that ended with this status."""
        return self.status == int(status)
