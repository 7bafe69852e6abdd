"""What somebody who runs many solves of the same examples remembers of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.solving.inverse import Inverse
from saddlepoint.solving.solution import Solution, Status

_RANK = 20  # terms of an inverse that are remembered: two states' worth of memory each


@dataclass
class _Book:
    evaluations: Tensor  # [N] int64
    products: Tensor  # [N] int64
    failures: Tensor  # [N] int64
    known: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # key -> values [N, ...], [N] bool: is there one?


@dataclass(frozen=True)
class Notes:
    """A seat on a notebook, per example: what solves cost and, if `warm`, where they ended so that the next one starts there.

    A row reads only what it wrote itself: its solves are a function of its own history. A notebook belongs to one attack; the
    referee opens a new one for every answer.
    """

    book: _Book
    rows: Tensor  # [N] positions in the notebook
    warm: bool = False
    prefix: str = ""

    @classmethod
    def of(cls, n: int, device: torch.device | None = None, *, warm: bool = False) -> Notes:
        zeros = torch.zeros(n, dtype=torch.long, device=device)
        return cls(_Book(zeros, zeros, zeros), torch.arange(n, device=device), warm)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Notes:
        return replace(self, rows=self.rows[rows])

    def under(self, name: str) -> Notes:
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

    def spend(self, evaluations: int | Tensor = 0, products: int | Tensor = 0) -> None:
        self.book.evaluations = self._added(self.book.evaluations, evaluations)
        self.book.products = self._added(self.book.products, products)

    def judge(self, solution: Solution) -> None:
        self.book.failures = self._added(self.book.failures, (~solution.ended(Status.CONVERGED)).long())

    def state(self, key: str, otherwise: Tensor) -> Tensor:
        """[N, ...]: where the last solve of this name ended, row by row; `otherwise` where there was none."""
        return self._read(key, otherwise) if self.warm else otherwise

    def inverse(self, key: str, z: Tensor) -> Inverse | None:
        """What the last solve of this name learned."""
        if not self.warm or f"{self.prefix}{key}/left" not in self.book.known:
            return None
        none = z.new_zeros(len(z), _RANK, z[0].numel())
        return Inverse(self._read(f"{key}/left", none), self._read(f"{key}/right", none))

    def remember(self, key: str, solution: Solution) -> None:
        """Where it ended; a row that failed outright starts afresh next time."""
        if not self.warm:
            return
        sound = solution.ended(Status.CONVERGED) | solution.ended(Status.OUT_OF_STEPS)
        self._write(key, solution.best, sound)
        if solution.inverse is not None:
            inverse = solution.inverse.latest(_RANK).padded(_RANK)
            self._write(f"{key}/left", inverse.left, sound)
            self._write(f"{key}/right", inverse.right, sound)

    def _added(self, counter: Tensor, amount: int | Tensor) -> Tensor:
        return counter.index_add(0, self.rows, torch.as_tensor(amount, device=counter.device).expand(len(self)).to(counter))

    def _read(self, key: str, otherwise: Tensor) -> Tensor:
        values, there = self.book.known.get(self.prefix + key, (None, None))
        if values is None or there is None or values.shape[1:] != otherwise.shape[1:]:
            return otherwise
        there = there[self.rows].view(-1, *[1] * (otherwise.ndim - 1))
        return torch.where(there, values[self.rows].to(otherwise), otherwise)

    def _write(self, key: str, values: Tensor, sound: Tensor) -> None:
        key = self.prefix + key
        old = self.book.known.get(key)
        n = len(self.book.evaluations)
        if old is None or old[0].shape[1:] != values.shape[1:]:
            old = values.new_zeros(n, *values.shape[1:]), torch.zeros(n, dtype=torch.bool, device=values.device)
        self.book.known[key] = old[0].index_copy(0, self.rows, values.detach()), old[1].index_copy(0, self.rows, sound)
