"""A solve inside a forward pass, as a rule finds it, and what rules for it have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from saddlepoint.solvers import Inverse, Solution, Solver, SolverStats, Start

Cell = Callable[
    [Tensor, Tensor, Tensor], Tensor
]  # (z, x, rows): f(z; x) for these rows of the batch, with their coins


@dataclass(frozen=True)
class Solve:
    """z = f(z; x), the method that solves it, and what of its path somebody will read."""

    cell: Cell
    start: Start
    x: Tensor  # [N, ...]
    method: Solver
    keep: frozenset[int]
    weights: tuple[float, ...]
    stats: SolverStats

    def f(self, z: Tensor, rows: Tensor) -> Tensor:
        return self.cell(z, self.x if len(rows) == len(self.x) else self.x[rows], rows)

    @property
    def rows(self) -> Tensor:
        return torch.arange(len(self.x), device=self.x.device)

    def everywhere(self, z: Tensor) -> Tensor:
        """f(z; x) on the whole batch."""
        return self.f(z, self.rows)

    @property
    def read(self) -> frozenset[int]:
        """The states that are read, be it in the blend."""
        return self.keep | {n for n, w in enumerate(self.weights, 1) if w != 0}

    def run(self, *, states: Iterable[int] = (), learned: bool = False) -> Solution:
        """What the method does; with a graph, if one is being recorded."""
        solution = self.method(
            self.f,
            self.start.state,
            keep=self.keep | frozenset(states),
            weights=self.weights,
            learned=learned,
            limits=self.start.limits,
        )
        self.stats.spend(evaluations=solution.evaluations)
        self.stats.judge(solution)
        self.stats.remember("z", solution)
        return solution

    def shown(self, solution: Solution, states: Mapping[int, Tensor], best: Tensor) -> Solution:
        """The solution with these tensors for its states, of which the blend is made again."""
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
    """f at a state, with a graph of its own: where cotangents cross."""

    solve: Solve
    name: str  # "3" for z_3, or "best"
    z: Tensor  # [N, ...] a leaf
    f: Tensor  # [N, ...] f(z; x)
    rows: Tensor  # [N] rows of the batch

    @classmethod
    def at(cls, solve: Solve, name: str, state: Tensor, rows: Tensor) -> Point:
        with torch.enable_grad():
            z = state.detach().requires_grad_()
            point = cls(solve, name, z, solve.f(z, rows), rows)
        solve.stats[rows].spend(evaluations=1)
        return point

    def vjp(self, u: Tensor) -> Tensor:
        """(df/dz)^T u."""
        if not self.f.requires_grad:  # f looks at nothing
            return torch.zeros_like(u)
        self.solve.stats[self.rows].spend(products=1)
        (product,) = torch.autograd.grad(self.f, self.z, u, retain_graph=True, allow_unused=True)
        return torch.zeros_like(u) if product is None else product

    def adjoint(
        self, c: Tensor, method: Solver, start: Start, inverse: Inverse | None = None
    ) -> Solution:
        """u = (df/dz)^T u + c by a solve; when half of the rows have finished, f is linearized anew for the others."""
        method = replace(
            method, batch_coupled=method.batch_coupled or self.solve.method.batch_coupled
        )
        linear = self

        def step(u: Tensor, rows: Tensor) -> Tensor:
            nonlocal linear
            if 2 * len(rows) <= len(linear.rows):
                linear = Point.at(self.solve, self.name, self.z[rows], rows)
            at = torch.searchsorted(linear.rows, rows)
            whole = (
                u
                if len(rows) == len(linear.rows)
                else torch.zeros_like(linear.z).index_copy(0, at, u)
            )
            product = linear.vjp(whole)
            return c[rows] + (product if len(rows) == len(linear.rows) else product[at])

        solution = method(step, start.state, inverse=inverse, limits=start.limits)
        self.solve.stats.judge_adjoint(solution)
        return solution


Pull = Callable[
    [list[Tensor | None]], list[Tensor | None]
]  # cotangents of the states -> cotangents of f at them


def crossed(points: list[Point], pull: Pull) -> list[Tensor]:
    """The points' states, each a function of x and of the cell's parameters through f: `pull` says what f receives."""
    if not any(point.f.requires_grad for point in points):
        return [point.z.detach() for point in points]
    states = [point.z.detach() for point in points]
    images = [point.f for point in points]
    return list(_Cross.apply(pull, len(points), *states, *images))  # type: ignore[no-untyped-call]


class _Cross(torch.autograd.Function):
    """States going forward, to the last bit; what the rule makes of all their cotangents at once going backward."""

    @staticmethod
    def forward(ctx: Any, pull: Pull, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pull = pull
        ctx.count = count
        ctx.set_materialize_grads(False)
        return tuple(z.clone() for z in tensors[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *[None] * ctx.count, *ctx.pull(list(cotangents)))
