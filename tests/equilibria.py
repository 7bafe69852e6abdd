"""Equilibrium models with fixed points and gradients in closed form. Everything is float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tests.problems import keys, normal
from torch import Tensor

from saddlepoint.defenses import Broyden, Context, Defense, Solution, Solver, Trace, View
from saddlepoint.gradients import Rule


@dataclass(frozen=True)
class Affine:
    """f(z; x) = A z + U x + b, with L(z) = c z."""

    a: Tensor  # [D, D]
    u: Tensor  # [D, d]
    b: Tensor  # [D]

    @classmethod
    def contractive(cls, seed: int, states: int = 12, inputs: int = 7, norm: float = 0.6) -> Affine:
        a = normal(seed, states, states)
        return cls(
            norm * a / torch.linalg.matrix_norm(a, 2),
            normal(seed + 1, states, inputs),
            normal(seed + 2, states),
        )

    @classmethod
    def nonnormal(
        cls, seed: int, states: int = 12, inputs: int = 7, radius: float = 0.5, above: float = 0.6
    ) -> Affine:
        """An upper triangular A: eigenvalues below `radius`, entries of size `above` over them."""
        eigenvalues = radius * (2 * torch.sigmoid(normal(seed, states)) - 1)
        a = torch.diag(eigenvalues) + above * torch.triu(normal(seed + 3, states, states), 1)
        return cls(a, normal(seed + 1, states, inputs), normal(seed + 2, states))

    def inject(self, x: Tensor) -> Tensor:
        return x @ self.u.T + self.b

    def cell(self, z: Tensor, injected: Tensor) -> Tensor:
        return z @ self.a.T + injected

    def start(self, n: int) -> Tensor:
        return torch.zeros(n, len(self.a), dtype=torch.float64)

    @property
    def eye(self) -> Tensor:
        return torch.eye(len(self.a), dtype=torch.float64)

    def fixed_point(self, x: Tensor) -> Tensor:
        return torch.linalg.solve(self.eye - self.a, self.inject(x).T).T

    def adjoint(self, c: Tensor) -> Tensor:
        """u* = (I - A^T)^-1 c."""
        return torch.linalg.solve(self.eye - self.a.T, c.T).T

    def gradient(self, c: Tensor) -> Tensor:
        """U^T (I - A^T)^-1 c, the gradient of c z*(x)."""
        return self.adjoint(c) @ self.u


@dataclass(frozen=True)
class Curved(Affine):
    """f(z; x) = tanh(A z + U x + b)."""

    def cell(self, z: Tensor, injected: Tensor) -> Tensor:
        return (z @ self.a.T + injected).tanh()


def solved(
    model: Affine,
    rule: Rule,
    x: Tensor,
    *,
    method: Solver,
    ctx: Context | None = None,
    **options: object,
) -> Solution:
    """One solve with a rule at a site called "solve"."""
    ctx = ctx or Context(keys(len(x)), {"solve": rule})
    start = model.start(len(x))
    return ctx.solve(
        "solve",
        model.cell,
        start,
        model.inject(x),
        method=method,
        **options,  # type: ignore[arg-type]
    )


class Equilibrium(Defense):
    """A defense with a view of every state of its solve and one of its best state."""

    def __init__(
        self, model: Affine, classes: int = 4, method: Solver | None = None, seed: int = 9
    ) -> None:
        self.model = model
        self.head = normal(seed, classes, len(model.a))
        self.method = method or Broyden(steps=8, tolerance=1e-8)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        keep = [n for n in range(self.method.steps + 1) if ctx.keeps(f"solve/{n}")]
        model = self.model
        solution = ctx.solve(
            "solve", model.cell, model.start(len(x)), model.inject(x), method=self.method, keep=keep
        )
        states: Mapping[str, Tensor] = {f"solve/{n}": z for n, z in solution.states.items()}
        return Trace(
            tuple(
                View(name, z @ self.head.T)
                for name, z in {**states, "final": solution.best}.items()
            )
        )


# ---- one problem for all rules: L = C z at N rows
# -------------------------------------------------------------------------------

TIGHT = Broyden(steps=60, tolerance=1e-13)
STATES = 12
INPUTS = 7
N = 5
X = normal(100, N, INPUTS)
C = normal(101, N, STATES)


def gradient(
    model: Affine, rule: Rule, *, method: Solver = TIGHT, state: int | None = None
) -> Tensor:
    """The gradient of c z with respect to x, at the best state or at the given one."""
    x = X.clone().requires_grad_()
    solution = solved(model, rule, x, method=method, keep=() if state is None else [state])
    z = solution.best if state is None else solution.states[state]
    return torch.autograd.grad((C * z).sum(), x)[0]
