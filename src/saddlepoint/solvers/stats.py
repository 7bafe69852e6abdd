"""What somebody who runs many solves of the same examples remembers of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.solvers.solution import Solution, Status


@dataclass
class _Book:
    evaluations: Tensor  # [N] int64
    products: Tensor  # [N] int64
    failures: Tensor  # [N] int64
    adjoint: Tensor  # [N] double
    known: dict[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # key -> values [N, ...], [N] bool: is there one?


class Start(NamedTuple):
    """Where a solve starts, and how far it may go."""

    state: Tensor  # [N, ...]
    limits: Tensor  # [N] steps


@dataclass(frozen=True)
class SolverStats:
    """A seat on a notebook, per example: what solves cost and, if `warm`, where they ended, so that the next ones go on from there.

    An input that moves a little moves its fixed point a little: a warm solve needs few steps and may take no more than `warm`, so
    that it follows the fixed point over many queries instead of reaching it in each. A row reads only what it wrote itself: its
    solves are a function of its own history. A notebook belongs to one attack; the referee opens a new one for every answer.
    """

    book: _Book
    rows: Tensor  # [N] positions in the notebook
    warm: int = (
        0  # steps of a solve that starts where the row's last one ended; 0: every solve starts cold
    )
    prefix: str = ""

    @classmethod
    def of(cls, n: int, device: torch.device | None = None, *, warm: int = 0) -> SolverStats:
        zeros = torch.zeros(n, dtype=torch.long, device=device)
        nothing = torch.zeros(n, dtype=torch.float64, device=device)
        return cls(_Book(zeros, zeros, zeros, nothing), torch.arange(n, device=device), warm)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> SolverStats:
        return replace(self, rows=self.rows[rows])

    def under(self, name: str) -> SolverStats:
        """The same notebook, in which what is written here is not mixed up with what others write."""
        return replace(self, prefix=f"{self.prefix}{name}/")

    @property
    def evaluations(self) -> Tensor:
        """[N] evaluations of f so far."""
        return self.book.evaluations[self.rows]

    @property
    def products(self) -> Tensor:
        """[N] products with (df/dz)^T so far: what backward solves cost."""
        return self.book.products[self.rows]

    @property
    def failures(self) -> Tensor:
        """[N] solves so far, forward or backward, that did not converge."""
        return self.book.failures[self.rows]

    @property
    def adjoint_residual(self) -> Tensor:
        """[N] the largest residual with which a backward solve ended: where it is large, the gradient is not what it says it is."""
        return self.book.adjoint[self.rows]

    def spend(self, evaluations: int | Tensor = 0, products: int | Tensor = 0) -> None:
        self.book.evaluations = self._added(self.book.evaluations, evaluations)
        self.book.products = self._added(self.book.products, products)

    def judge(self, solution: Solution) -> None:
        self.book.failures = self._added(
            self.book.failures, (~solution.ended(Status.CONVERGED)).long()
        )

    def judge_adjoint(self, solution: Solution) -> None:
        self.judge(solution)
        worst = torch.maximum(
            self.adjoint_residual, solution.residual.detach().to(self.book.adjoint)
        )
        self.book.adjoint = self.book.adjoint.index_copy(0, self.rows, worst)

    def start(self, key: str, cold: Tensor, steps: int) -> Start:
        """Where the last solve of this name ended, row by row, and `warm` steps; where there was none, `cold` and all steps."""
        limits = torch.full((len(self),), steps, device=cold.device)
        values, there = self.book.known.get(self.prefix + key, (None, None))
        if values is None or there is None or values.shape[1:] != cold.shape[1:]:
            return Start(cold, limits)
        there = there[self.rows]
        state = torch.where(
            there.view(-1, *[1] * (cold.ndim - 1)), values[self.rows].to(cold), cold
        )
        return Start(state, torch.where(there, min(self.warm, steps), limits))

    def remember(self, key: str, solution: Solution) -> None:
        """Where it ended; a row that failed outright starts afresh next time."""
        if not self.warm:
            return
        key = self.prefix + key
        best = solution.best.detach()
        n = len(self.book.evaluations)
        sound = solution.ended(Status.CONVERGED) | solution.ended(Status.OUT_OF_STEPS)
        values, there = self.book.known.get(key, (None, None))
        if values is None or there is None or values.shape[1:] != best.shape[1:]:
            values = best.new_zeros(n, *best.shape[1:])
            there = torch.zeros(n, dtype=torch.bool, device=best.device)
        self.book.known[key] = (
            values.index_copy(0, self.rows, best),
            there.index_copy(0, self.rows, sound),
        )

    def _added(self, counter: Tensor, amount: int | Tensor) -> Tensor:
        return counter.index_add(
            0,
            self.rows,
            torch.as_tensor(amount, device=counter.device).expand(len(self)).to(counter),
        )
