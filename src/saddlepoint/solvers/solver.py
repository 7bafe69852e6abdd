"""Fixed points z = f(z): one loop for all methods, in which every example stops by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm

from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.record import SolveRecord
from saddlepoint.solvers.solution import Solution

# (z [M, ...], rows [M]) -> f(z) [M, ...] for these rows of the batch.
FixedPointMap = Callable[[Tensor, Tensor], Tensor]


class Iterate(Protocol):
    """The state of a method between two steps, [M, D] with flat states. It is immutable."""

    @property
    def inverse(self) -> Inverse | None:
        """The inverse Jacobian built so far; None for methods that build none."""
        ...

    def next_state(self) -> Tensor:
        """The next state z, [M, D]."""
        ...

    def updated(self, z: Tensor, f: Tensor) -> Iterate:
        """The iterate after the step to z, where f = f(z)."""
        ...

    def __getitem__(self, rows: Tensor) -> Iterate: ...


@dataclass(frozen=True, kw_only=True)
class Solver(ABC):
    """A fixed-point method with its stopping rule.

    An example converges when its residual is below `tolerance`. It diverges when ||f(z) - z||
    exceeds `divergence` times the scale of its start, max(||f(z_0) - z_0||, ||f(z_0)||). A stopped
    example costs nothing: f is evaluated only for the examples that are still moving. The result of
    an example does not depend on the others. All operations are differentiable, so a solve can be
    recorded by autograd.

    With `batch_coupled` the loop behaves like the code released with Yang et al. 2022. Norms are
    taken over the whole batch, and one decision to stop and one best iterate hold for all examples,
    so the output for an image depends on the rest of its batch. The start is not checked for
    convergence. The loop also stops when 30 steps brought no progress. It diverges when the
    residual exceeds `divergence` times the first one.

    Args:
        steps: most steps per example, at least 1; default 50.
        tolerance: an example stops when its residual is below this; default 1e-3.
        relative: the residual is ||f(z) - z|| / ||f(z)|| (default) instead of ||f(z) - z||.
        divergence: factor of the divergence rule above, more than 1; default 1e3.
        batch_coupled: use one stopping rule for the whole batch; default False.
    """

    steps: int = 50
    tolerance: float = 1e-3
    relative: bool = True
    divergence: float = 1e3
    batch_coupled: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tolerance < 0 or self.divergence <= 1:
            raise ValueError(
                f"{type(self).__name__} needs steps >= 1, tolerance >= 0 and divergence > 1, "
                f"got steps={self.steps}, tolerance={self.tolerance} and "
                f"divergence={self.divergence}."
            )

    @property
    def truncates_inverse(self) -> bool:
        """The method drops early terms of its inverse, so it cannot return the whole inverse."""
        return False

    @abstractmethod
    def first_iterate(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> Iterate:
        """The iterate at the start.

        Args:
            z: start, [N, D].
            f: f(z), [N, D].
            inverse: an inverse Jacobian to start from, for methods that use one.
        """

    def __call__(
        self,
        f: FixedPointMap,
        start: Tensor,
        *,
        keep: Iterable[int] = (),
        weights: Sequence[float] = (),
        inverse: Inverse | None = None,
        return_inverse: bool = False,
        max_steps: Tensor | None = None,
    ) -> Solution:
        """Solve z = f(z) for a batch.

        Memory does not grow with the number of steps, except for the states, the weighted sum and
        the inverse that are requested, and for what the method itself stores.

        Args:
            f: the map; it receives states [M, ...] and their row numbers [M] in the batch.
            start: z_0, [N, ...], floating point and finite.
            keep: the steps n, from 0 to `steps`, at which states z_n are returned; default none.
            weights: one weight for each of z_1..z_T; their weighted sum is returned as `blend`.
                Default: no weighted sum.
            inverse: an inverse Jacobian to start from; default -I. Only Broyden uses it.
            return_inverse: return the inverse Jacobian that Broyden built; default False.
            max_steps: most steps per example, [N] from 1; default `steps`.

        Returns:
            The solution, with its residuals and status per example.

        Raises:
            ValueError: `start`, `keep` or `weights` are invalid, f changes the shape or type of the
                state, or `return_inverse` is used with a method that drops terms of its inverse.
        """
        if return_inverse and self.truncates_inverse:
            raise ValueError(
                f"{self} cannot return its inverse, because `memory` drops early terms. "
                "Leave out `memory`."
            )
        if max_steps is None:
            max_steps = torch.full((len(start),), self.steps, device=start.device)
        record = SolveRecord(self, start, frozenset(keep), tuple(weights), max_steps)
        built = self._iterate(f, start, record, inverse, return_inverse)
        return record.solution(built)

    def norm(self, v: Tensor) -> Tensor:
        """[M] norm of each row of v, [M, D]; the norm of the whole batch if `batch_coupled`."""
        length: Tensor = (
            vector_norm(v.detach()) if self.batch_coupled else vector_norm(v.detach(), dim=1)
        )
        return length.expand(len(v))

    def _iterate(
        self,
        f: FixedPointMap,
        start: Tensor,
        record: SolveRecord,
        inverse: Inverse | None,
        return_inverse: bool,
    ) -> Inverse | None:
        """Iterate until all rows have stopped; the inverse of the batch is returned on request."""
        rows = torch.arange(len(start), device=start.device)
        z = start.flatten(1)
        value = self._evaluate(f, z, rows, start)
        iterate = self.first_iterate(z, value, inverse)
        finished = []  # (rows, inverse) of the examples that stopped
        stopping = record.add_start(z, value)
        for _ in range(self.steps):
            if bool(stopping.any()):
                stopped = iterate[stopping.nonzero()[:, 0]].inverse if return_inverse else None
                finished.append((rows[stopping], stopped))
                moving = (~stopping).nonzero()[:, 0]
                rows = rows[moving]
                iterate = iterate[moving]
            if not len(rows):
                break
            z = iterate.next_state()
            value = self._evaluate(f, z, rows, start)
            iterate = iterate.updated(z, value)
            stopping = record.add_step(rows, z, value)
        return _merged([*finished, (rows, iterate.inverse)]) if return_inverse else None

    def _evaluate(self, f: FixedPointMap, z: Tensor, rows: Tensor, like: Tensor) -> Tensor:
        shaped = z.view(len(z), *like.shape[1:])
        value = f(shaped, rows)
        if value.shape != shaped.shape or value.dtype != z.dtype:
            raise ValueError(
                f"f(z) must have the shape and type of z. z has shape {tuple(shaped.shape)} and "
                f"type {z.dtype}, f(z) has shape {tuple(value.shape)} and type {value.dtype}. "
                "Start from a state of the cell's own shape and type."
            )
        return value.flatten(1)


def _merged(parts: list[tuple[Tensor, Inverse | None]]) -> Inverse | None:
    """The inverses of all rows in the order of the batch; rows that stopped early are padded."""
    built = [(rows, inverse) for rows, inverse in parts if inverse is not None]
    if not built:
        return None
    rank = max(inverse.rank for _, inverse in built)
    padded = [inverse.padded(rank) for _, inverse in built]
    whole = Inverse(torch.cat([i.left for i in padded]), torch.cat([i.right for i in padded]))
    return whole[torch.cat([rows for rows, _ in built]).argsort()] if len(built) > 1 else whole
