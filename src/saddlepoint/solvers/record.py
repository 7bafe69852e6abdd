"""The record of a running solve: states, residuals and status of the whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.solution import Solution, Status

if TYPE_CHECKING:
    from saddlepoint.solvers.solver import Solver

# A batch-coupled solve stalls by the rule of the code released with Yang et al. 2022: over the last
# 30 steps the residuals differ by a factor below 1.3, and the last is below 3 tolerances.
_STALL_WINDOW = 30
_STALL_TOLERANCES = 3
_STALL_SPREAD = 1.3


class _Measured(NamedTuple):
    residual: Tensor  # [M] by which convergence is decided
    size: Tensor  # [M] ||f - z||
    finite: Tensor  # [M] bool: no NaN and no infinity


class SolveRecord:
    """Collects what a `Solution` reports, for the whole batch, while examples stop one by one.

    Args:
        solver: the method, for its stopping rule.
        start: z_0, [N, ...].
        keep: the steps at which states are kept.
        weights: weights of z_1..z_T for their sum; empty for no sum.
        max_steps: most steps per example, [N].

    Raises:
        ValueError: the start, `keep` or `weights` do not fit the solver.
    """

    def __init__(
        self,
        solver: Solver,
        start: Tensor,
        keep: frozenset[int],
        weights: tuple[float, ...],
        max_steps: Tensor,
    ) -> None:
        _check_arguments(solver, start, keep, weights)
        self._solver = solver
        self._shape = start.shape
        self._keep = keep
        self._weights = weights
        self._max_steps = max_steps
        self._current = self._best = start.flatten(1)
        self._blend = torch.zeros_like(self._current)
        infinite = self._current.new_full((len(start),), torch.inf)
        self._residual = self._lowest = self._scale = infinite
        self._residuals: list[Tensor] = []
        self._states = {0: start} if 0 in keep else {}
        self._status = torch.full(
            (len(start),), int(Status.OUT_OF_STEPS), dtype=torch.int8, device=start.device
        )
        self._evaluations = torch.zeros(len(start), dtype=torch.long, device=start.device)

    def add_start(self, z: Tensor, f: Tensor) -> Tensor:
        """Record f(z_0), [N, D].

        Returns:
            [N] bool: rows that have converged already or cannot make a step.
        """
        residual, size, finite = self._measure(z, f)
        self._scale = torch.maximum(size, self._solver.norm(f))
        self._evaluations = self._evaluations + 1
        # The released loop does not check its start for convergence.
        converged = finite & (residual < self._solver.tolerance) & (not self._solver.batch_coupled)
        self._residual = self._lowest = torch.where(finite, residual, torch.inf)
        self._status = _marked(self._status, converged, torch.zeros_like(converged), ~finite)
        return converged | ~finite

    def add_step(self, rows: Tensor, z: Tensor, f: Tensor) -> Tensor:
        """Record a step of the rows that are still moving.

        Args:
            rows: their positions in the batch, [M].
            z: their new states, [M, D].
            f: f(z), [M, D].

        Returns:
            [M] bool: which of these rows stop now.
        """
        residual, size, finite = self._measure(z, f)
        self._evaluations = self._evaluations.index_add(0, rows, torch.ones_like(rows))
        converged = finite & (residual < self._solver.tolerance)
        diverged = finite & ~converged & self._has_diverged(residual, size, rows)
        usable = finite & ~diverged
        # The start is never the best state: z_0 = 0 would have the lowest residual in many failing
        # solves, and it is the same for every image.
        better = usable & ((residual < self._lowest[rows]) | (not self._residuals))
        self._best = _put(self._best, rows, z, better)
        self._lowest = _put(self._lowest, rows, residual, better)
        self._current = _put(self._current, rows, z, usable)
        self._residual = _put(self._residual, rows, residual, usable)
        if not bool(usable.all()):
            failed = rows[~usable]
            self._current = _put(self._current, failed, self._best[failed])
            self._residual = _put(self._residual, failed, self._lowest[failed])
        marked = _marked(self._status[rows], converged, diverged, ~finite)
        self._status = _put(self._status, rows, marked)
        self._append_states()
        out_of_steps = len(self._residuals) >= self._max_steps[rows]
        return converged | ~usable | self._has_stalled() | out_of_steps

    def solution(self, inverse: Inverse | None) -> Solution:
        """The solution of the whole batch, with the inverse that the method built."""
        # If all rows stopped early, repeat their states: every batch returns the same number.
        while len(self._residuals) < self._solver.steps:
            self._append_states()
        return Solution(
            self._best.view(self._shape),
            self._states,
            self._blend.view(self._shape) if self._weights else None,
            torch.stack(self._residuals),
            self._lowest,
            self._evaluations,
            self._status,
            inverse,
        )

    def _measure(self, z: Tensor, f: Tensor) -> _Measured:
        size = self._solver.norm(f - z)
        scale = self._solver.norm(f)
        residual = size
        if self._solver.relative:
            residual = size / scale.clamp(min=torch.finfo(z.dtype).tiny)
        return _Measured(residual, size, residual.isfinite() & scale.isfinite())

    def _has_diverged(self, residual: Tensor, size: Tensor, rows: Tensor) -> Tensor:
        if self._solver.batch_coupled:
            first = self._residuals[0][rows] if self._residuals else residual
            return residual > self._solver.divergence * first
        return size > self._solver.divergence * self._scale[rows]

    def _has_stalled(self) -> bool:
        if not self._solver.batch_coupled or len(self._residuals) <= _STALL_WINDOW:
            return False
        recent = torch.stack(self._residuals[-_STALL_WINDOW:])[:, 0]
        return bool(
            (recent[-1] < _STALL_TOLERANCES * self._solver.tolerance)
            & (recent.amax() < _STALL_SPREAD * recent.amin())
        )

    def _append_states(self) -> None:
        self._residuals.append(self._residual)
        n = len(self._residuals)
        if n in self._keep:
            self._states[n] = self._current.view(self._shape)
        if self._weights:
            self._blend = self._blend + self._weights[n - 1] * self._current


def _marked(status: Tensor, converged: Tensor, diverged: Tensor, non_finite: Tensor) -> Tensor:
    """The status of rows after a step; a later condition overrides an earlier one."""
    for where, code in (
        (converged, Status.CONVERGED),
        (diverged, Status.DIVERGED),
        (non_finite, Status.NON_FINITE),
    ):
        status = status.masked_fill(where, int(code))
    return status


def _put(full: Tensor, rows: Tensor, part: Tensor, where: Tensor | None = None) -> Tensor:
    """`full` with its rows `rows` replaced by those of `part`, only where `where` is true."""
    if where is not None and not bool(where.all()):
        rows = rows[where]
        part = part[where]
    return part if len(rows) == len(full) else full.index_copy(0, rows, part)


def _check_arguments(
    solver: Solver, start: Tensor, keep: frozenset[int], weights: tuple[float, ...]
) -> None:
    if start.ndim < 2 or not start.is_floating_point():
        raise ValueError(
            "a solve starts from a floating-point state of shape [N, ...], "
            f"got {start.dtype} of shape {tuple(start.shape)}."
        )
    if not bool(start.isfinite().all()):
        raise ValueError("a solve starts from a finite state, got NaN or infinity.")
    if not keep <= set(range(solver.steps + 1)):
        raise ValueError(
            f"states 0..{solver.steps} can be kept, but keep={sorted(keep)}. "
            "Give the solver more steps or keep fewer states."
        )
    if weights and len(weights) != solver.steps:
        raise ValueError(
            f"weights need one entry for each of the states z_1..z_{solver.steps}, "
            f"got {len(weights)}."
        )
