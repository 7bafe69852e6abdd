"""What a solver hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from saddlepoint.solvers.inverse import Inverse


class Status(IntEnum):
    """How one example's solve ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    DIVERGED = 2  # the residual grew far beyond the scale of f(z_0)
    NON_FINITE = 3  # a state or f of it was not a number


class SolveInfo(NamedTuple):
    """How a solve went, without its states."""

    residual: Tensor  # [N] of the best state
    evaluations: Tensor  # [N]
    status: Tensor  # [N] int8, see Status


@dataclass(frozen=True)
class Solution:
    """States of one solve. A row that has finished repeats its last state; one that failed, its lowest-residual finite one."""

    best: Tensor  # [N, ...] each row's state of lowest residual
    states: Mapping[int, Tensor]  # n -> z_n [N, ...], for the steps that were asked for
    blend: Tensor | None  # [N, ...] sum_n w_n z_n, if weights were given
    residuals: Tensor  # [T, N] of z_1..z_T
    residual: Tensor  # [N] of `best`; infinite where f(z_0) is not finite
    evaluations: Tensor  # [N] int64: how often f was evaluated for this row
    status: Tensor  # [N] int8, see Status
    inverse: Inverse | None  # what Broyden learned, if it was asked for

    @property
    def taken(self) -> Tensor:
        """[N] steps until the row stopped; the first evaluation was that of the start."""
        return self.evaluations - 1

    def ended(self, status: Status) -> Tensor:
        """[N] bool: which rows ended like this."""
        return self.status == int(status)
