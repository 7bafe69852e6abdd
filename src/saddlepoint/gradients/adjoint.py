"""An adjoint that walks beside the solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from saddlepoint.gradients.implicit import SolveRule
from saddlepoint.gradients.solve import Point, Solve, crossed
from saddlepoint.solvers import Inverse, Solution


@dataclass(frozen=True)
class SimultaneousAdjoint(SolveRule):
    """Adjoint states u_n beside the states z_n, moved by the solver's own inverse (Yang et al. 2022, Sec. 4.1).

    v_n = (df/dz at z_n)^T u_n + c_n - u_n,  u_{n+1} = u_n - beta B_n^T v_n,  u_0 = 0  (Eq. 9-10), and x receives
    (df/dx at z_n)^T u_n (Eq. 11) for the emitted n: a given one, the last whose loss is part of the objective, or the sum over all
    whose loss is (Eq. 17). Eq. 10 writes B_n, but the Newton step of the transposed system needs B_n^T, and without it the walk
    fails on maps far from normal: `transpose=False` is Eq. 10 as written. Methods that build no inverse walk with B = -I.

    c_n is the cotangent of z_n, that is, dL(z_n)/dz if the attacker's objective is a sum of losses over the states
    (`mean_of_losses`; z_0 too, if the defense shows it). For a state whose loss is not in the objective the next one's stands in.
    The best state, from which a final answer is made, comes after z_T. A row that has finished stays at its state, while its
    adjoint walks on.
    """

    beta: float = 0.9
    emit: int | Literal["last", "all"] = "last"
    transpose: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1:
            raise ValueError(f"SimultaneousAdjoint needs 0 < beta <= 1, got beta={self.beta}.")
        if self.emit not in ("last", "all") and not (isinstance(self.emit, int) and self.emit >= 1):
            raise ValueError(
                f'emit is the number of a state from 1, "last" or "all", got {self.emit!r}.'
            )

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled()
        last = solve.method.steps
        if isinstance(self.emit, int) and self.emit > last:
            raise ValueError(
                f"SimultaneousAdjoint emits state {self.emit}, but the solve has {last} steps."
            )
        with torch.no_grad():
            solution = solve.run(states=range(last + 1) if recording else (), learned=recording)
        if not recording:
            return solution
        chain = [*(solution.states[n] for n in range(last + 1)), solution.best]
        crossing = sorted(
            solve.read | ({self.emit} if isinstance(self.emit, int) else set()) | {last + 1}
        )
        points = {n: Point.at(solve, str(n), chain[n], solve.rows) for n in crossing}
        known = solution.inverse or Inverse.start(solve.start.state.flatten(1))

        def pull(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            given = dict(zip(crossing, cotangents, strict=True))
            c = [
                torch.zeros_like(z) if (v := given.get(n)) is None else v
                for n, z in enumerate(chain)
            ]
            told = torch.stack([v.flatten(1).ne(0).any(1) for v in c])  # [T + 2, N]
            emitted = self._emitted(told)
            u = torch.zeros_like(chain[0])
            out = {}
            for n, v in enumerate(_filled(c, told)):
                out[n] = torch.where(_like(emitted[n], u), u, 0.0)
                if not bool(emitted[n + 1 :].any()):
                    break
                point = points[n] if n in points else Point.at(solve, str(n), chain[n], solve.rows)
                u = u - self.beta * self._turned(known.first(n), point.vjp(u) + v - u)
            return [out.get(n) for n in crossing]

        out = dict(zip(crossing, crossed(list(points.values()), pull), strict=True))
        return solve.shown(solution, out, out[last + 1])

    def _turned(self, inverse: Inverse, v: Tensor) -> Tensor:
        product = inverse.rmatvec if self.transpose else inverse.matvec
        return product(v.flatten(1)).view_as(v)

    def _emitted(self, told: Tensor) -> Tensor:
        """[T + 2, N] bool: which surrogate gradients a row's x receives."""
        number = torch.arange(len(told), device=told.device)[:, None]
        if isinstance(self.emit, int):
            return (number == self.emit).expand_as(told)
        latest = torch.where(told, number, 0).amax(0)
        return (told & (number > 0)) if self.emit == "all" else (number == latest) & (number > 0)


def _filled(c: list[Tensor], told: Tensor) -> list[Tensor]:
    """Every state's cotangent, or that of the next state that has one."""
    filled = [c[-1]]
    for v, there in zip(reversed(c[:-1]), reversed(told[:-1].unbind()), strict=True):
        filled.append(torch.where(_like(there, v), v, filled[-1]))
    return filled[::-1]


def _like(rows: Tensor, z: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (z.ndim - 1))
