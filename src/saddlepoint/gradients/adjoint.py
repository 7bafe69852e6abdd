"""The simultaneous adjoint: adjoint states that are updated beside the states of the solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saddlepoint.gradients.implicit import SolveRule
from saddlepoint.gradients.solve import Point, Solve, crossed
from saddlepoint.phrases import count
from saddlepoint.solvers import Inverse, Solution


@dataclass(frozen=True)
class SimultaneousAdjoint(SolveRule):
    """Adjoint states u_n beside the states z_n, updated with the inverse B_n of the forward solve.

    Yang et al. 2022, Sec. 4.1, from u_0 = 0:

        v_n = (df/dz at z_n)^T u_n + c_n - u_n,   u_{n+1} = u_n - beta B_n^T v_n   (Eq. 9-10).

    The input receives (df/dx at z_n)^T u_n (Eq. 11) for the emitted n. Eq. 10 writes B_n, but the
    Newton step of the transposed system needs B_n^T; without the transpose the iteration fails on
    maps that are far from normal. Methods that build no inverse use B = -I.

    c_n is the cotangent of z_n. It equals dL(z_n)/dz if the attacker's objective is a sum of losses
    over the states (`mean_of_losses`; also over z_0, if the defense returns it). A state that is
    not part of the objective uses the cotangent of the next state that is. The best state, from
    which the final output is computed, comes after z_T. A row that has converged stays at its state
    while its adjoint is updated further.

    Args:
        beta: step size of the adjoint, 0 < beta <= 1; default 0.9.
        emit: which gradients the input receives. A number n from 1: that of z_n. "last" (default):
            that of the last state in the objective. "all": the sum over all states in the
            objective (Eq. 17).
        transpose: use B_n^T (default); False is Eq. 10 as written.
    """

    beta: float = 0.9
    emit: int | Literal["last", "all"] = "last"
    transpose: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise ValueError(f"SimultaneousAdjoint needs 0 < beta <= 1, got beta={self.beta}.")
        if self.emit not in ("last", "all") and not (isinstance(self.emit, int) and self.emit >= 1):
            raise ValueError(
                f'emit must be the number of a state from 1, "last" or "all", got {self.emit!r}.'
            )

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled()
        last = solve.method.steps
        if isinstance(self.emit, int) and self.emit > last:
            raise ValueError(
                f"SimultaneousAdjoint emits state {self.emit}, but the solve has "
                f"{count(last, 'step')}."
            )
        with torch.no_grad():
            solution = solve.run(
                states=range(last + 1) if recording else (), return_inverse=recording
            )
        if not recording:
            return solution
        chain = [*(solution.states[n] for n in range(last + 1)), solution.best]
        emitted = {self.emit} if isinstance(self.emit, int) else set()
        differentiated = sorted(solve.read | emitted | {last + 1})
        points = {n: Point.at(solve, str(n), chain[n], solve.rows) for n in differentiated}
        inverse = solution.inverse or Inverse.initial(solve.start.state.flatten(1))

        def pullback(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            received = dict(zip(differentiated, cotangents, strict=True))
            return self._adjoints(solve, chain, points, inverse, received)

        outputs = crossed(list(points.values()), pullback)
        states = dict(zip(differentiated, outputs, strict=True))
        return solve.with_states(solution, states, states[last + 1])

    def _adjoints(
        self,
        solve: Solve,
        chain: list[Tensor],
        points: dict[int, Point],
        inverse: Inverse,
        received: dict[int, Tensor | None],
    ) -> list[Tensor | None]:
        """The cotangents of f at the points: u_n where it is emitted, else zero.

        Args:
            solve: the solve.
            chain: the states z_0..z_T and the best state, each [N, ...].
            points: linearizations of f at some of them.
            inverse: the inverse of the forward solve.
            received: cotangents of the states at which f was linearized; None: not used.
        """
        c = [
            torch.zeros_like(z) if (v := received.get(n)) is None else v
            for n, z in enumerate(chain)
        ]
        nonzero = torch.stack([v.flatten(1).ne(0).any(1) for v in c])  # [T + 2, N]
        emitted = self._emitted(nonzero)
        u = torch.zeros_like(chain[0])
        out: dict[int, Tensor | None] = {}
        for n, v in enumerate(_filled(c, nonzero)):
            out[n] = torch.where(_like(emitted[n], u), u, 0.0)
            if not bool(emitted[n + 1 :].any()):
                break
            point = points[n] if n in points else Point.at(solve, str(n), chain[n], solve.rows)
            residual = point.vjp(u) + v - u
            u = u - self.beta * self._times_inverse(inverse.first_terms(n), residual)
        return [out.get(n) for n in points]

    def _times_inverse(self, inverse: Inverse, v: Tensor) -> Tensor:
        product = inverse.rmatvec if self.transpose else inverse.matvec
        return product(v.flatten(1)).view_as(v)

    def _emitted(self, nonzero: Tensor) -> Tensor:
        """[T + 2, N] bool: the input of a row receives the gradients of these states.

        Args:
            nonzero: the states with a nonzero cotangent, [T + 2, N] bool.
        """
        number = torch.arange(len(nonzero), device=nonzero.device)[:, None]
        if isinstance(self.emit, int):
            return (number == self.emit).expand_as(nonzero)
        if self.emit == "all":
            return nonzero & (number > 0)
        latest = torch.where(nonzero, number, 0).amax(0)
        return (number == latest) & (number > 0)


def _filled(c: list[Tensor], nonzero: Tensor) -> list[Tensor]:
    """The cotangent of every state, or that of the next state that has one."""
    filled = [c[-1]]
    for v, present in zip(reversed(c[:-1]), reversed(nonzero[:-1].unbind()), strict=True):
        filled.append(torch.where(_like(present, v), v, filled[-1]))
    return filled[::-1]


def _like(rows: Tensor, z: Tensor) -> Tensor:
    """[N] reshaped to [N, 1, ...], to broadcast against z."""
    return rows.view(-1, *[1] * (z.ndim - 1))
