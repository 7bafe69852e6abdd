"""Splitting methods for monotone equilibria, row by row, and the exact gradient through the equilibrium they find.

Everything here solves  z = P(W z + b)  where I - W is strongly monotone (its symmetric part is at least m I, m > 0) and P projects
onto a convex set, coordinate by coordinate: relu in a forward pass. The gradient is an equilibrium of the same kind: W^T takes the
place of W, and the projection that keeps the active coordinates that of relu (Winston & Kolter 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

Project = Callable[[Tensor], Tensor]
Advance = Callable[[Tensor, Tensor], Tensor]  # (v, z = P(v)) -> the next v; rows [N, D]


class Iterate(NamedTuple):
    """Where the rows stand after some steps. A row that has settled stays where it is."""

    state: Tensor  # [N, D]
    residual: Tensor  # [N] ||p - z|| / ||p||, p = P(z + (W z + b - z) / L); at most the tolerance where the row has settled
    steps: Tensor  # [N] int64 that each row took


class Splitting(Protocol):
    """A recursion v -> v' whose fixed point v gives the equilibrium z = P(v), and when to stop it.

    Lengths of steps are in units of 1 / L, L = ||I - W||_2: the same method suits every network.
    """

    @property
    def step(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def tolerance(self) -> float: ...
    def toward(
        self, weight: Tensor, bias: Tensor, step: Tensor
    ) -> Advance: ...  # step in units of the state


@dataclass(frozen=True)
class ForwardBackward:
    """v' = z + a (W z + b - z),  z = P(v),  a = step / L.

    Converges for step < 2 m / L; with step = m / L the distance to the equilibrium shrinks by sqrt(1 - (m / L)^2) per step or
    better. With longer steps it may not converge, which the residual says.
    """

    step: float  # in units of 1 / L
    steps: int = 3000
    tolerance: float = 1e-5  # ten times what rounding in single precision was seen to leave

    def __post_init__(self) -> None:
        _refuse_bad(self)

    def toward(self, weight: Tensor, bias: Tensor, step: Tensor) -> Advance:
        return lambda v, z: z + step * (z @ weight.T + bias - z)  # noqa: ARG005


@dataclass(frozen=True)
class PeacemanRachford:
    """v' = 2 (I + a (I - W))^-1 (w + a b) - w,  w = 2 z - v,  z = P(v),  a = step / L.

    Converges for every step > 0; with step = 1 the distance to the fixed point in v shrinks by sqrt((L - m) / (L + m)) per step or
    better, which is far better than `ForwardBackward` when L is much larger than m. Steps twice as long are promised less and were
    faster on trained networks. One matrix is inverted per solve.
    """

    step: float = 2.0  # in units of 1 / L
    steps: int = 500
    tolerance: float = 1e-5  # ten times what rounding in single precision was seen to leave

    def __post_init__(self) -> None:
        _refuse_bad(self)

    def toward(self, weight: Tensor, bias: Tensor, step: Tensor) -> Advance:
        identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        inverse = torch.linalg.inv(identity + step * (identity - weight))

        def advance(v: Tensor, z: Tensor) -> Tensor:
            w = 2 * z - v
            return 2 * torch.mm(w + step * bias, inverse.T) - w

        return advance


def iterates(
    method: Splitting, weight: Tensor, bias: Tensor, project: Project = torch.relu
) -> Iterator[Iterate]:
    """The states after 0, 1, 2, ... steps from zero, until every row has settled or the method's steps are spent.

    Each row stops by its own residual, so that its state does not depend on its neighbors. The equilibrium is no further from z
    than 2 (L / m) ||p - z||. The residual is that of a step of 1 / L because that of a plain step, P(W z + b) - z, is up to L times
    as large: for a large W it would stay above the tolerance by rounding alone.
    """
    with torch.no_grad():
        unit: Tensor = 1 / torch.linalg.matrix_norm(torch.eye(len(weight)).to(weight) - weight, 2)
    advance = method.toward(weight, bias, method.step * unit)
    v = z = torch.zeros_like(bias)
    residual = _residual(z, weight, bias, project, unit)
    steps = torch.zeros(len(bias), dtype=torch.long, device=bias.device)
    yield Iterate(z, residual, steps)
    for _ in range(method.steps):
        moving = ~(residual <= method.tolerance)  # a residual that is not a number has not settled
        if not moving.any():
            return
        v = torch.where(moving[:, None], advance(v, z), v)
        z = project(v)
        residual = _residual(z, weight, bias, project, unit)
        steps = steps + moving
        yield Iterate(z, residual, steps)


def settle(
    method: Splitting, weight: Tensor, bias: Tensor, project: Project = torch.relu
) -> Iterate:
    """The last of `iterates`, without a graph. A row whose residual is above the tolerance has not settled."""
    with torch.no_grad():
        for here in iterates(method, weight, bias, project):
            last = here
    return last


def equilibrium(method: Splitting, weight: Tensor, bias: Tensor) -> Tensor:
    """[N, D] z = relu(W z + b), differentiable in weight and bias by the implicit function theorem."""
    return cast(Tensor, _Equilibrium.apply(weight, bias, method))  # type: ignore[no-untyped-call]


def adjoint(method: Splitting, weight: Tensor, active: Tensor, cotangent: Tensor) -> Iterate:
    """[N, D] y = J (W^T y + v): the gradient of <v, z*> in the bias, J = diag(active).

    It is linear in v, and solved for v at unit size: the gradient of a saturated loss is so small that its square is zero.
    """
    scale = cotangent.abs().amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    found = settle(method, weight.T, cotangent / scale, lambda v: torch.where(active, v, 0.0))
    return found._replace(state=found.state * scale)


class _Equilibrium(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, method: Splitting) -> Tensor:
        state = settle(method, weight, bias).state
        ctx.method = method
        ctx.save_for_backward(weight, state, state @ weight.T + bias > 0)
        return state

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, state, active = ctx.saved_tensors
        y = adjoint(ctx.method, weight, active, cotangent).state
        return y.T @ state, y, None


def _residual(
    z: Tensor, weight: Tensor, bias: Tensor, project: Project, unit: Tensor
) -> Tensor:  # [N]
    with torch.no_grad():
        p = project(z + unit * (z @ weight.T + bias - z))
        gap: Tensor = torch.linalg.vector_norm(p - z, dim=1)
        size: Tensor = torch.linalg.vector_norm(p, dim=1)
        share = gap / size.clamp(
            min=torch.finfo(z.dtype).tiny
        )  # where p = 0 the row has settled if z = 0 too
        return torch.where(
            size.isfinite(), share, torch.inf
        )  # a state so large that its square overflows has not


def _refuse_bad(method: Splitting) -> None:
    if not (method.step > 0 and method.steps >= 1 and method.tolerance > 0):
        raise ValueError(
            f"a splitting method needs step > 0, steps >= 1 and tolerance > 0, got {method}."
        )
