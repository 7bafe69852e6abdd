"""Fixed points z = f(z): one loop for all methods, in which every example stops on its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm

from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.solution import Solution, Status

Cell = Callable[
    [Tensor, Tensor], Tensor
]  # (z [M, ...], rows [M]) -> f(z) for these rows of the batch


class Walk(Protocol):
    """Where a method stands on each row, [M, D] flat: a value."""

    @property
    def inverse(self) -> Inverse | None: ...
    def propose(self) -> Tensor: ...  # the next state
    def observe(self, z: Tensor, f: Tensor) -> Walk: ...  # having seen f(z)
    def __getitem__(self, rows: Tensor) -> Walk: ...


@dataclass(frozen=True, kw_only=True)
class Solver(ABC):
    """A method with its stopping rule.

    A row stops when its residual ||f(z) - z|| / ||f(z)||, or ||f(z) - z||, is below the tolerance; it is given up when
    ||f(z) - z|| exceeds `divergence` times the scale of f(z_0). From then on it costs nothing: f is evaluated for the rows still
    moving. No row's result depends on the others. Everything is differentiable in f, should somebody run it with a graph.

    `batch_coupled` is the behavior of the code released with Yang et al. 2022, for parity: norms over the whole batch, one
    decision to stop and one lowest iterate for all rows, so that an image's answer depends on its batch mates; a stop when 30 steps
    have brought nothing; and the ratio to the first residual as the sign of divergence.
    """

    steps: int = 50
    tolerance: float = 1e-3
    relative: bool = True
    divergence: float = 1e3
    batch_coupled: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tolerance < 0 or self.divergence <= 1:
            raise ValueError(
                f"{type(self).__name__} needs steps >= 1, tolerance >= 0 and divergence > 1, got steps={self.steps}, "
                f"tolerance={self.tolerance} and divergence={self.divergence}."
            )

    @property
    def forgets(self) -> bool:
        """Does it forget what it learned on its first steps, so that nobody can look back at it?"""
        return False

    @abstractmethod
    def begin(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> Walk:
        """A walk from z [N, D], where f = f(z)."""

    def __call__(
        self,
        f: Cell,
        start: Tensor,
        *,
        keep: Iterable[int] = (),
        weights: Sequence[float] = (),
        inverse: Inverse | None = None,
        learned: bool = False,
        limits: Tensor | None = None,
    ) -> Solution:
        """Solve from `start`, and from an inverse known beforehand; row i takes at most limits[i] steps, [N] from 1.

        States are kept, summed with weights, and the inverse is handed back only where asked for: else the memory of a solve does
        not grow with its steps, save what the method itself needs.
        """
        if learned and self.forgets:
            raise ValueError(
                f"what was learned on the way cannot be had from {self}, which forgets it. Leave out `memory`."
            )
        limits = (
            torch.full((len(start),), self.steps, device=start.device) if limits is None else limits
        )
        record = _Record(self, start, frozenset(keep), tuple(weights), limits)
        rows = torch.arange(len(start), device=start.device)
        z = start.flatten(1)
        value = self._evaluate(f, z, rows, start)
        walk = self.begin(z, value, inverse)
        gone = []
        leaving = record.opened(z, value)
        for _ in range(self.steps):
            if bool(leaving.any()):
                gone.append(
                    (rows[leaving], walk[leaving.nonzero()[:, 0]].inverse if learned else None)
                )
                staying = (~leaving).nonzero()[:, 0]
                rows = rows[staying]
                walk = walk[staying]
            if not len(rows):
                break
            z = walk.propose()
            value = self._evaluate(f, z, rows, start)
            walk = walk.observe(z, value)
            leaving = record.moved(rows, z, value)
        return record.closed(_reunited([*gone, (rows, walk.inverse)]) if learned else None)

    def norm(self, v: Tensor) -> Tensor:
        """[M]: of each row, or of the whole batch at every row."""
        length: Tensor = (
            vector_norm(v.detach()) if self.batch_coupled else vector_norm(v.detach(), dim=1)
        )
        return length.expand(len(v))

    def _evaluate(self, f: Cell, z: Tensor, rows: Tensor, like: Tensor) -> Tensor:
        shaped = z.view(len(z), *like.shape[1:])
        value = f(shaped, rows)
        if value.shape != shaped.shape or value.dtype != z.dtype:
            raise ValueError(
                f"f(z) must look like z: z has shape {tuple(shaped.shape)} and type {z.dtype}, f(z) has shape {tuple(value.shape)} "
                f"and type {value.dtype}. Start from a state of the cell's own shape and type."
            )
        return value.flatten(1)


class _Record:
    """What a Solution reports, kept for the whole batch while rows leave the walk."""

    def __init__(
        self,
        solver: Solver,
        start: Tensor,
        keep: frozenset[int],
        weights: tuple[float, ...],
        limits: Tensor,
    ) -> None:
        _refuse(solver, start, keep, weights)
        self.solver = solver
        self.shape = start.shape
        self.keep = keep
        self.weights = weights
        self.limits = limits
        self.now = self.best = start.flatten(1)
        self.blend = torch.zeros_like(self.now)
        self.residual = self.lowest = self.scale = self.now.new_full((len(start),), torch.inf)
        self.trail: list[Tensor] = []
        self.states = {0: start} if 0 in keep else {}
        self.status = torch.full(
            (len(start),), int(Status.OUT_OF_STEPS), dtype=torch.int8, device=start.device
        )
        self.evaluations = torch.zeros(len(start), dtype=torch.long, device=start.device)

    def opened(self, z: Tensor, f: Tensor) -> Tensor:
        """[N] bool: rows that need no step, or cannot make one."""
        residual, size, finite = self._measure(z, f)
        self.scale = torch.maximum(size, self.solver.norm(f))
        self.evaluations = self.evaluations + 1
        # The released loop does not look at its start.
        converged = finite & (residual < self.solver.tolerance) & (not self.solver.batch_coupled)
        self.residual = self.lowest = torch.where(finite, residual, torch.inf)
        self.status = self._verdict(self.status, converged, torch.zeros_like(converged), ~finite)
        return converged | ~finite

    def moved(self, rows: Tensor, z: Tensor, f: Tensor) -> Tensor:
        """[M] bool: which of the rows that made a step make no further one."""
        residual, size, finite = self._measure(z, f)
        self.evaluations = self.evaluations.index_add(0, rows, torch.ones_like(rows))
        converged = finite & (residual < self.solver.tolerance)
        lost = finite & ~converged & self._far(residual, size, rows)
        sound = finite & ~lost
        # The start competes with nobody: z_0 = 0 would be the lowest of many a failing solve, and the same for every image.
        better = sound & ((residual < self.lowest[rows]) | (not self.trail))
        self.best = _put(self.best, rows, z, better)
        self.lowest = _put(self.lowest, rows, residual, better)
        self.now = _put(self.now, rows, z, sound)
        self.residual = _put(self.residual, rows, residual, sound)
        if not bool(sound.all()):
            failed = rows[~sound]
            self.now = _put(self.now, failed, self.best[failed])
            self.residual = _put(self.residual, failed, self.lowest[failed])
        self.status = _put(
            self.status, rows, self._verdict(self.status[rows], converged, lost, ~finite)
        )
        self._note()
        return converged | ~sound | self._stalled() | (len(self.trail) >= self.limits[rows])

    def closed(self, inverse: Inverse | None) -> Solution:
        while (
            len(self.trail) < self.solver.steps
        ):  # everybody has finished: the number of states is the same for every batch
            self._note()
        blend = self.blend.view(self.shape) if self.weights else None
        residuals = torch.stack(self.trail)
        best = self.best.view(self.shape)
        return Solution(
            best, self.states, blend, residuals, self.lowest, self.evaluations, self.status, inverse
        )

    def _measure(self, z: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[M] residual, [M] ||f - z||, [M] bool: is all of it a number?"""
        size = self.solver.norm(f - z)
        scale = self.solver.norm(f)
        residual = (
            size / scale.clamp(min=torch.finfo(z.dtype).tiny) if self.solver.relative else size
        )
        return residual, size, residual.isfinite() & scale.isfinite()

    def _far(self, residual: Tensor, size: Tensor, rows: Tensor) -> Tensor:
        if self.solver.batch_coupled:
            return residual > self.solver.divergence * (
                self.trail[0][rows] if self.trail else residual
            )
        return size > self.solver.divergence * self.scale[rows]

    def _stalled(self) -> bool:
        if not self.solver.batch_coupled or len(self.trail) <= 30:
            return False
        recent = torch.stack(self.trail[-30:])[:, 0]
        return bool(
            (recent[-1] < 3 * self.solver.tolerance) & (recent.amax() < 1.3 * recent.amin())
        )

    @staticmethod
    def _verdict(status: Tensor, converged: Tensor, lost: Tensor, broken: Tensor) -> Tensor:
        for which, code in (
            (converged, Status.CONVERGED),
            (lost, Status.DIVERGED),
            (broken, Status.NON_FINITE),
        ):
            status = status.masked_fill(which, int(code))
        return status

    def _note(self) -> None:
        self.trail.append(self.residual)
        n = len(self.trail)
        if n in self.keep:
            self.states[n] = self.now.view(self.shape)
        if self.weights:
            self.blend = self.blend + self.weights[n - 1] * self.now


def _put(full: Tensor, rows: Tensor, part: Tensor, where: Tensor | None = None) -> Tensor:
    """`full` with `part` in some of its rows: those of `rows` at which `where` holds."""
    if where is not None and not bool(where.all()):
        rows = rows[where]
        part = part[where]
    return part if len(rows) == len(full) else full.index_copy(0, rows, part)


def _reunited(parts: list[tuple[Tensor, Inverse | None]]) -> Inverse | None:
    """One inverse per row of the batch again; rows that left early know fewer terms."""
    known = [(rows, inverse) for rows, inverse in parts if inverse is not None]
    if not known:
        return None
    rank = max(inverse.rank for _, inverse in known)
    padded = [inverse.padded(rank) for _, inverse in known]
    whole = Inverse(torch.cat([i.left for i in padded]), torch.cat([i.right for i in padded]))
    return whole[torch.cat([rows for rows, _ in known]).argsort()] if len(known) > 1 else whole


def _refuse(
    solver: Solver, start: Tensor, keep: frozenset[int], weights: tuple[float, ...]
) -> None:
    if start.ndim < 2 or not start.is_floating_point():
        raise ValueError(
            f"a solve starts from a state [N, ...] of real numbers, got {start.dtype} of shape {tuple(start.shape)}."
        )
    if not bool(start.isfinite().all()):
        raise ValueError("a solve starts from a finite state, got one that holds NaN or infinity.")
    if not keep <= set(range(solver.steps + 1)):
        raise ValueError(
            f"states 0..{solver.steps} can be kept, asked for {sorted(keep)}. Give the solver more steps or keep fewer."
        )
    if weights and len(weights) != solver.steps:
        raise ValueError(
            f"weights are given for the states z_1..z_{solver.steps}, got {len(weights)} of them."
        )
