"""Statistics over many solves of the same examples, and warm starts from their last states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.solvers.solution import Solution, Status


class _SavedStates(NamedTuple):
    values: Tensor  # [N, ...]
    present: Tensor  # [N] bool: rows for which a state was saved


@dataclass
class _Totals:
    """The mutable part of `SolverStats`, shared by all its restrictions."""

    evaluations: Tensor  # [N] int64
    products: Tensor  # [N] int64
    failures: Tensor  # [N] int64
    adjoint_residual: Tensor  # [N] float64
    saved: dict[str, _SavedStates] = field(default_factory=dict)  # by name of the solve


class Start(NamedTuple):
    """The start of a solve and its step limit."""

    state: Tensor  # [N, ...]
    max_steps: Tensor  # [N] most steps per example


@dataclass(frozen=True)
class SolverStats:
    """Costs and failures of solves per example and, if `warm`, their last states for warm starts.

    A small change of the input moves the fixed point by a small distance. A warm solve starts at
    the last state of the same example and takes at most `warm` steps, so that it tracks the fixed
    point over many queries instead of converging in each. An example only reads states that were
    saved for itself, so its solves depend on its own past solves only. Each attack has its own
    statistics; the referee uses new ones for every evaluation.

    `stats[rows]` and `stats.under(name)` share the totals with `stats`.
    """

    totals: _Totals
    rows: Tensor  # [N] positions of these examples in the totals
    warm: int = 0  # most steps of a warm solve; 0: every solve starts from its own start
    prefix: str = ""  # prepended to the names under which states are saved

    @classmethod
    def of(cls, n: int, device: torch.device | None = None, *, warm: int = 0) -> SolverStats:
        """Create empty statistics.

        Args:
            n: number of examples.
            device: device of the counters; default CPU.
            warm: most steps of a solve that starts at the last state of its example; default 0,
                no warm starts.
        """
        zeros = torch.zeros(n, dtype=torch.long, device=device)
        no_residual = torch.zeros(n, dtype=torch.float64, device=device)
        totals = _Totals(zeros, zeros, zeros, no_residual)
        return cls(totals, torch.arange(n, device=device), warm)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> SolverStats:
        """The same statistics for some of the rows."""
        return replace(self, rows=self.rows[rows])

    def under(self, name: str) -> SolverStats:
        """The same statistics with saved states kept apart from those of other names."""
        return replace(self, prefix=f"{self.prefix}{name}/")

    @property
    def evaluations(self) -> Tensor:
        """[N] evaluations of f so far."""
        return self.totals.evaluations[self.rows]

    @property
    def products(self) -> Tensor:
        """[N] products with (df/dz)^T so far, the cost of backward solves."""
        return self.totals.products[self.rows]

    @property
    def failures(self) -> Tensor:
        """[N] solves so far, forward or backward, that did not converge."""
        return self.totals.failures[self.rows]

    @property
    def adjoint_residual(self) -> Tensor:
        """[N] largest final residual of a backward solve; large values mean wrong gradients."""
        return self.totals.adjoint_residual[self.rows]

    def spend(self, evaluations: int | Tensor = 0, products: int | Tensor = 0) -> None:
        """Add evaluations of f and products with (df/dz)^T, per example or the same for all."""
        self.totals.evaluations = self._added(self.totals.evaluations, evaluations)
        self.totals.products = self._added(self.totals.products, products)

    def count_failures(self, solution: Solution) -> None:
        """Count the rows of a forward solve that did not converge."""
        failed = ~solution.has_status(Status.CONVERGED)
        self.totals.failures = self._added(self.totals.failures, failed.long())

    def record_adjoint(self, solution: Solution) -> None:
        """Count the failures of a backward solve and keep its residual if it is the largest."""
        self.count_failures(solution)
        largest = torch.maximum(
            self.adjoint_residual, solution.residual.detach().to(self.totals.adjoint_residual)
        )
        self.totals.adjoint_residual = self.totals.adjoint_residual.index_copy(
            0, self.rows, largest
        )

    def start(self, name: str, cold: Tensor, steps: int) -> Start:
        """The start of the next solve.

        Args:
            name: name under which the last state was saved.
            cold: start of rows without a saved state, [N, ...]; they take up to `steps` steps.
            steps: most steps of a cold solve. A warm solve takes at most `warm` of them.
        """
        max_steps = torch.full((len(self),), steps, device=cold.device)
        saved = self.totals.saved.get(self.prefix + name)
        if saved is None or saved.values.shape[1:] != cold.shape[1:]:
            return Start(cold, max_steps)
        present = saved.present[self.rows]
        state = torch.where(
            present.view(-1, *[1] * (cold.ndim - 1)), saved.values[self.rows].to(cold), cold
        )
        return Start(state, torch.where(present, min(self.warm, steps), max_steps))

    def save_state(self, name: str, solution: Solution) -> None:
        """Save the best states for warm starts; rows that failed start cold in the next solve."""
        if not self.warm:
            return
        key = self.prefix + name
        best = solution.best.detach()
        n = len(self.totals.evaluations)
        usable = solution.has_status(Status.CONVERGED) | solution.has_status(Status.OUT_OF_STEPS)
        saved = self.totals.saved.get(key)
        if saved is None or saved.values.shape[1:] != best.shape[1:]:
            saved = _SavedStates(
                best.new_zeros(n, *best.shape[1:]),
                torch.zeros(n, dtype=torch.bool, device=best.device),
            )
        self.totals.saved[key] = _SavedStates(
            saved.values.index_copy(0, self.rows, best),
            saved.present.index_copy(0, self.rows, usable),
        )

    def _added(self, counter: Tensor, amount: int | Tensor) -> Tensor:
        return counter.index_add(
            0,
            self.rows,
            torch.as_tensor(amount, device=counter.device).expand(len(self)).to(counter),
        )
