"""A solve inside a forward pass, as rules receive it, and the parts that rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from saddlepoint.solvers import Inverse, Solution, Solver, SolverStats, Start

# (z [M, ...], x [M, ...], rows [M]) -> f(z; x) [M, ...] for these rows, with their random keys.
Cell = Callable[[Tensor, Tensor, Tensor], Tensor]

# Cotangents of the states -> cotangents of f at these states; None: not used.
Pullback = Callable[[list[Tensor | None]], list[Tensor | None]]


@dataclass(frozen=True)
class Solve:
    """The equation z = f(z; x), the method that solves it, and the states that are read."""

    cell: Cell
    start: Start
    x: Tensor  # [N, ...]
    method: Solver
    keep: frozenset[int]  # steps at which the defense reads the state
    weights: tuple[float, ...]  # of z_1..z_T in the blend; empty: no blend
    stats: SolverStats
    following: bool = False  # the defense reads f(best)

    def f(self, z: Tensor, rows: Tensor) -> Tensor:
        """f(z; x) for the rows `rows`, [M], of the batch; z is [M, ...]."""
        return self.cell(z, self.x if len(rows) == len(self.x) else self.x[rows], rows)

    @property
    def rows(self) -> Tensor:
        """[N] all rows of the batch."""
        return torch.arange(len(self.x), device=self.x.device)

    def on_batch(self, z: Tensor) -> Tensor:
        """f(z; x) for the whole batch, [N, ...]."""
        return self.f(z, self.rows)

    @property
    def read(self) -> frozenset[int]:
        """The steps at which states are read, directly or in the blend."""
        return self.keep | {n for n, w in enumerate(self.weights, 1) if w != 0}

    def run(self, *, states: Iterable[int] = (), return_inverse: bool = False) -> Solution:
        """Run the method; autograd records it if gradients are enabled.

        Args:
            states: further steps at which states are returned.
            return_inverse: return the inverse that Broyden builds; default False.
        """
        solution = self.method(
            self.f,
            self.start.state,
            keep=self.keep | frozenset(states),
            weights=self.weights,
            return_inverse=return_inverse,
            max_steps=self.start.max_steps,
        )
        self.stats.spend(evaluations=solution.evaluations)
        self.stats.count_failures(solution)
        self.stats.save_state("z", solution)
        return solution

    def with_states(
        self, solution: Solution, states: Mapping[int, Tensor], best: Tensor
    ) -> Solution:
        """The solution with other tensors for its states; the blend is computed from them.

        Args:
            solution: the solution of `run`.
            states: n -> z_n for all steps that are read, each [N, ...].
            best: the best state, [N, ...].
        """
        blend = solution.blend
        if blend is not None:
            blend = torch.zeros_like(best)
            for n, weight in enumerate(self.weights, 1):
                blend = blend + weight * states[n] if weight != 0 else blend
        return replace(
            solution, states={n: states[n] for n in sorted(self.keep)}, best=best, blend=blend
        )


@dataclass(frozen=True)
class Point:
    """f evaluated at a state with an autograd graph of its own, for products with its Jacobian."""

    solve: Solve
    name: str  # "3" for z_3, or "best"
    z: Tensor  # [N, ...] a leaf of the graph
    f: Tensor  # [N, ...] f(z; x)
    rows: Tensor  # [N] rows of the batch

    @classmethod
    def at(cls, solve: Solve, name: str, state: Tensor, rows: Tensor) -> Point:
        """Evaluate f at `state`, [N, ...], for the rows `rows`, [N]. Costs one evaluation."""
        with torch.enable_grad():
            z = state.detach().requires_grad_()
            point = cls(solve, name, z, solve.f(z, rows), rows)
        solve.stats[rows].spend(evaluations=1)
        return point

    def vjp(self, u: Tensor) -> Tensor:
        """(df/dz)^T u, [N, ...]."""
        if not self.f.requires_grad:  # f depends neither on z nor on x
            return torch.zeros_like(u)
        self.solve.stats[self.rows].spend(products=1)
        (product,) = torch.autograd.grad(self.f, self.z, u, retain_graph=True, allow_unused=True)
        return torch.zeros_like(u) if product is None else product

    def adjoint(
        self, c: Tensor, method: Solver, start: Start, inverse: Inverse | None = None
    ) -> Solution:
        """Solve u = (df/dz)^T u + c.

        When half of the rows have stopped, f is linearized again for the others only.

        Args:
            c: the cotangent, [N, ...].
            method: the solver. It is batch-coupled if the forward solver is.
            start: start and step limit.
            inverse: an inverse to start from; default -I.
        """
        method = replace(
            method, batch_coupled=method.batch_coupled or self.solve.method.batch_coupled
        )
        linear = self

        def step(u: Tensor, rows: Tensor) -> Tensor:
            nonlocal linear
            if 2 * len(rows) <= len(linear.rows):
                linear = Point.at(self.solve, self.name, self.z[rows], rows)
            if len(rows) == len(linear.rows):
                return c[rows] + linear.vjp(u)
            at = torch.searchsorted(linear.rows, rows)
            padded = torch.zeros_like(linear.z).index_copy(0, at, u)
            return c[rows] + linear.vjp(padded)[at]

        solution = method(step, start.state, inverse=inverse, max_steps=start.max_steps)
        self.solve.stats.record_adjoint(solution)
        return solution


class LastPoint:
    """Evaluates f with a graph and keeps the last evaluation, which a warm solve often ends with.

    Args:
        solve: the equation.
    """

    def __init__(self, solve: Solve) -> None:
        self._solve = solve
        self._last: Point | None = None

    def evaluate(self, z: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        """f(z; x) for the rows `rows`, [M, ...], in place of the cell of the equation."""
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            self._last = Point(self._solve, "best", leaf, self._solve.cell(leaf, x, rows), rows)
        return self._last.f.detach()

    def at(self, best: Tensor) -> Point | None:
        """The last evaluation, if it was at the best states [N, ...] of all rows; else None."""
        last = self._last
        whole = last is not None and last.z.shape == best.shape
        return last if last is not None and whole and torch.equal(last.z, best) else None


def crossed(points: list[Point], pullback: Pullback, *, following: bool = False) -> list[Tensor]:
    """The states of the points, differentiable in x and in the parameters of the cell through f.

    Args:
        points: the states.
        pullback: maps the cotangents of all states to the cotangents that f receives at them.
        following: return f of each state instead of the state.
    """
    values = [(point.f if following else point.z).detach() for point in points]
    if not any(point.f.requires_grad for point in points):
        return values
    images = [point.f for point in points]
    out = _Crossed.apply(pullback, len(points), *values, *images)  # type: ignore[no-untyped-call]
    return list(out)


class _Crossed(torch.autograd.Function):
    # Returns the values exactly; passes all their cotangents to the pullback at once.

    @staticmethod
    def forward(ctx: Any, pullback: Pullback, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pullback = pullback
        ctx.count = count
        ctx.set_materialize_grads(False)
        return tuple(z.clone() for z in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *[None] * ctx.count, *ctx.pullback(list(cotangents)))
