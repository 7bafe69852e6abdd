"""Gradients of a fixed point by the implicit function theorem."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from saddlepoint.gradients.rule import Map, Rule
from saddlepoint.gradients.solve import LastPoint, Point, Solve, crossed
from saddlepoint.solvers import Broyden, Inverse, Solution, Solver, Start


class SolveRule(Rule):
    """A rule for solves only."""

    def apply(self, fn: Map, x: Tensor) -> Tensor:  # noqa: ARG002
        raise TypeError(
            f"{type(self).__name__} differentiates a solve (`ctx.solve`), but this site runs a "
            "function (`ctx.through`). Use Exact, Checkpointed or BPDA for it."
        )


class StateRule(SolveRule):
    """A rule that differentiates each state separately, as if it were the fixed point.

    For a cotangent c of a state, the input receives (df/dx)^T u(c), where f is linearized at the
    state.
    """

    needs_inverse: ClassVar[bool] = False  # it uses the inverse that the forward solve built

    @abstractmethod
    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:
        """u(c), [N, ...], at one state.

        Args:
            point: f linearized at the state.
            c: the cotangent of the state, [N, ...].
            inverse: the inverse Jacobian at that state, if the rule needs it and the method builds
                one.
        """

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled()
        last = LastPoint(solve)
        with torch.no_grad():
            forward = (
                replace(solve, cell=last.evaluate) if recording and solve.stats.warm else solve
            )
            solution = forward.run(
                states=solve.read if recording else (),
                return_inverse=self.needs_inverse and recording,
            )
        if not recording:
            return solution
        # By address: after all rows have stopped, the states are the same tensor.
        points: dict[int, Point] = {}
        if (reused := last.at(solution.best)) is not None:
            points[solution.best.data_ptr()] = reused
        named = [(str(n), z) for n, z in solution.states.items()]
        for name, z in [*named, ("best", solution.best)]:
            if z.data_ptr() not in points:
                points[z.data_ptr()] = Point.at(solve, name, z, solve.rows)
        unique = list(points.values())

        def pullback(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            inverses = [_inverse_at(solution.inverse, point.name) for point in unique]
            return [
                None if c is None else self.adjoint(point, c, inverse)
                for point, c, inverse in zip(unique, cotangents, inverses, strict=True)
            ]

        out = dict(zip(points, crossed(unique, pullback), strict=True))
        best = solution.best.data_ptr()
        states = {n: out[z.data_ptr()] for n, z in solution.states.items()}
        following = self.following(points[best]) if solve.following else None
        return replace(solve.with_states(solution, states, out[best]), following=following)

    def following(self, best: Point) -> Tensor | None:  # noqa: ARG002
        """f(best), [N, ...], with a gradient of its own; None: the gradient through `best`.

        Args:
            best: f linearized at the best state.
        """
        return None


@dataclass(frozen=True)
class Implicit(StateRule):
    """The gradient of the fixed point: solve u = (df/dz)^T u + c, then (df/dx)^T u.

    Bai et al. 2019; Yang et al. 2022, Eq. 2-3, the "exact" gradient of that paper. It is exact
    where the forward solve has converged. Elsewhere it treats a state as a fixed point that it is
    not. Memory is one graph of f per state that is read, for any number of steps of either solve.

    A defense may predict from f(z) of the best state z. Let c be the cotangent of f(z) and
    J = df/dz. Where the backward solve converges, `at` makes no difference. In an attack with warm
    starts "following" is used always: it takes one product less.

    * `at="best"`: the input receives (df/dx)^T (c + u), where u = J^T u + J^T c.
    * `at="following"`: the input receives (df/dx)^T u, where u = J^T u + c. This is the order of
      the released code of Yang et al. 2022. For equality with that code where the backward solve
      does not converge, `method` also needs `divergence=math.inf`: the released solver does not
      stop there.

    Args:
        method: the solver of the backward equation; default Broyden with 50 steps and tolerance
            1e-6. `Picard()` sums the Neumann series.
        at: the state that is differentiated as the fixed point, if the defense predicts from f of
            the best state: "best", the best state itself (default), or "following", f of it.

    Raises:
        ValueError: `at` is neither "best" nor "following".
    """

    method: Solver = field(default_factory=lambda: Broyden(steps=50, tolerance=1e-6))
    at: Literal["best", "following"] = "best"

    def __post_init__(self) -> None:
        if self.at not in ("best", "following"):
            raise ValueError(f'Implicit differentiates at "best" or "following", got {self.at!r}.')

    def following(self, best: Point) -> Tensor | None:
        if self.at == "best" and not best.solve.stats.warm:
            return None

        def pullback(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            point = replace(best, name="following")
            return [None if c is None else self.adjoint(point, c, None) for c in cotangents]

        return crossed([best], pullback, following=True)[0]

    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:  # noqa: ARG002
        stats = point.solve.stats
        name = f"u/{point.name}"
        solution = point.adjoint(
            c, self.method, stats.start(name, torch.zeros_like(c), self.method.steps)
        )
        stats.save_state(name, solution)
        return solution.best


@dataclass(frozen=True)
class SharedInverse(StateRule):
    """The inverse B of the forward solve instead of a second solve: u = -B^T c.

    (I - (df/dz)^T)^-1 is approximately -B^T. Ramzi et al. 2022 (SHINE). At an intermediate state
    z_n, B is the inverse at that step. B approximates the inverse only along the directions of the
    forward solve and may be far off elsewhere. Where ||u|| > limit ||c||, the row therefore uses
    the cotangent itself, u = c, which is the gradient of one step of f.

    Args:
        limit: bound on ||u|| / ||c||, more than 0; default 1.3, infinity for no bound.
        refine: steps of a Broyden solve of the backward equation that starts from u and B^T;
            default 0, none.

    Raises:
        ValueError: `limit` or `refine` is out of range, or the site is not solved by Broyden.
    """

    limit: float = 1.3
    refine: int = 0
    needs_inverse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.limit <= 0 or self.refine < 0:
            raise ValueError(
                "SharedInverse needs limit > 0 and refine >= 0, "
                f"got limit={self.limit} and refine={self.refine}."
            )

    def adjoint(self, point: Point, c: Tensor, inverse: Inverse | None) -> Tensor:
        if inverse is None:
            raise ValueError(
                "SharedInverse reuses the inverse that a Broyden solve builds, but this site is "
                f"solved by {type(point.solve.method).__name__}. Use Implicit, or solve by Broyden."
            )
        flat = c.flatten(1)
        u = -inverse.rmatvec(flat)
        too_long = u.norm(dim=1, keepdim=True) > self.limit * flat.norm(dim=1, keepdim=True)
        u = torch.where(too_long, flat, u).view_as(c)
        if not self.refine:
            return u
        start = Start(u, torch.full((len(u),), self.refine, device=u.device))
        method = Broyden(steps=self.refine, tolerance=1e-6)
        return point.adjoint(c, method, start, inverse.transposed).best


def _inverse_at(inverse: Inverse | None, name: str) -> Inverse | None:
    """The inverse at step `name`; for the best state, the inverse with all terms."""
    return inverse if inverse is None or name == "best" else inverse.first_terms(int(name))
