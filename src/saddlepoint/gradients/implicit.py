"""Gradients of a fixed point by the implicit function theorem."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saddlepoint.gradients.rule import Map, Rule
from saddlepoint.gradients.solve import Point, Solve, crossed
from saddlepoint.solvers import Broyden, Inverse, Solution, Solver, Start


class SolveRule(Rule):
    """A rule for solves only."""

    def apply(self, fn: Map, x: Tensor) -> Tensor:  # noqa: ARG002
        raise TypeError(
            f"{type(self).__name__} differentiates a solve (`ctx.solve`), but this site runs a plain function (`ctx.through`). "
            "Give it Exact, Checkpointed or BPDA."
        )


class StateRule(SolveRule):
    """A rule that looks at each state by itself: as if it were the fixed point, x receives (df/dx)^T u(c) for its cotangent c."""

    inverted = False  # does it need what the forward solve learned?

    @abstractmethod
    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:
        """u(c) [N, ...] at one state."""

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled()
        with torch.no_grad():
            solution = solve.run(
                states=solve.read if recording else (), learned=self.inverted and recording
            )
        if not recording:
            return solution
        points: dict[
            int, Point
        ] = {}  # by address: once all rows have finished, the states are one tensor
        for name, z in [
            *((str(n), z) for n, z in solution.states.items()),
            ("best", solution.best),
        ]:
            if z.data_ptr() not in points:
                points[z.data_ptr()] = Point.at(solve, name, z, solve.rows)
        unique = list(points.values())

        def pull(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            known = [_known(solution.inverse, point.name) for point in unique]
            return [
                None if c is None else self.adjoint(point, c, inverse)
                for point, c, inverse in zip(unique, cotangents, known, strict=True)
            ]

        out = dict(zip(points, crossed(unique, pull), strict=True))
        return solve.shown(
            solution,
            {n: out[z.data_ptr()] for n, z in solution.states.items()},
            out[solution.best.data_ptr()],
        )


@dataclass(frozen=True)
class Implicit(StateRule):
    """The gradient of the fixed point itself: u = (df/dz)^T u + c by a second solve, then (df/dx)^T u.

    Bai et al. 2019; Yang et al. 2022, Eq. 2-3, the "exact" gradient of that paper. It is exact where the forward solve has
    converged; elsewhere it is that of a fixed point which the state is not. Memory: one graph of f for each state that is read,
    however many steps either solve takes. `Picard()` as method sums the Neumann series.
    """

    method: Solver = field(default_factory=lambda: Broyden(steps=50, tolerance=1e-6))

    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:  # noqa: ARG002
        stats = point.solve.stats
        name = f"u/{point.name}"
        solution = point.adjoint(
            c, self.method, stats.start(name, torch.zeros_like(c), self.method.steps)
        )
        stats.remember(name, solution)
        return solution.best


@dataclass(frozen=True)
class SharedInverse(StateRule):
    """Without a second solve: u = -B^T c with the inverse B that the forward solve has built, (I - (df/dz)^T)^-1 being about -B^T.

    Ramzi et al. 2022 (SHINE); at an intermediate state z_n, B is the inverse as it was there. B knows the inverse only along the
    directions that the forward solve went, and may be far off elsewhere: where ||u|| > limit ||c||, the row falls back to the
    cotangent itself, u = c, the gradient of one step of f. `refine` goes on from there: that many steps of a solve with B^T.
    """

    limit: float = 1.3  # infinity: never fall back
    refine: int = 0
    inverted = True

    def __post_init__(self) -> None:
        if self.limit <= 0 or self.refine < 0:
            raise ValueError(
                f"SharedInverse needs limit > 0 and refine >= 0, got limit={self.limit} and refine={self.refine}."
            )

    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:
        if inverse is None:
            raise ValueError(
                f"SharedInverse reuses the inverse that a Broyden solve builds, but this site is solved by "
                f"{type(point.solve.method).__name__}. Use Implicit, or solve by Broyden."
            )
        flat = c.flatten(1)
        u = -inverse.rmatvec(flat)
        u = torch.where(
            u.norm(dim=1, keepdim=True) > self.limit * flat.norm(dim=1, keepdim=True), flat, u
        ).view_as(c)
        if not self.refine:
            return u
        start = Start(u, torch.full((len(u),), self.refine, device=u.device))
        return point.adjoint(
            c, Broyden(steps=self.refine, tolerance=1e-6), start, inverse.transposed
        ).best


def _known(inverse: Inverse | None, name: str) -> Inverse | None:
    """The inverse as it was at that state; for the best one, all that was learned."""
    return inverse if inverse is None or name == "best" else inverse.first(int(name))
