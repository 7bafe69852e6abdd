"""Splitting methods for monotone equilibria, and the exact gradient through an equilibrium.

Everything here solves  z = P(W z + b)  where I - W is strongly monotone (its symmetric part is at
least m I, m > 0) and P projects onto a convex set, coordinate by coordinate: relu in a forward
pass. Rows are independent. The gradient is an equilibrium of the same kind: W^T replaces W, and a
projection onto the active coordinates replaces relu (Winston & Kolter 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

Project = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Tensor], Tensor]  # (v, z = P(v)) -> the next v; rows [N, D]


class Iterate(NamedTuple):
    """The states of all rows after some steps. A row that has converged no longer changes."""

    state: Tensor  # [N, D]
    # [N] ||p - z|| / ||p|| with p = P(z + (W z + b - z) / L); a row has converged when this is at
    # most the tolerance.
    residual: Tensor
    steps: Tensor  # [N] int64, the number of steps of each row


class Splitting(Protocol):
    """A recursion v -> v' and its stopping rule; at its fixed point, z = P(v) is the equilibrium.

    Step sizes are in units of 1 / L, L = ||I - W||_2, so one setting suits every network.
    """

    @property
    def step(self) -> float:
        """The step size, in units of 1 / L."""
        ...

    @property
    def steps(self) -> int:
        """The largest number of steps."""
        ...

    @property
    def tolerance(self) -> float:
        """The relative residual at which a row has converged."""
        ...

    def recursion(self, weight: Tensor, bias: Tensor, step: Tensor) -> Step:
        """Return the map v -> v' for W [D, D], b [N, D] and a step size in units of the state."""
        ...


@dataclass(frozen=True)
class ForwardBackward:
    """v' = z + a (W z + b - z),  z = P(v),  a = step / L.

    Converges for step < 2 m / L. With step = m / L the distance to the equilibrium shrinks per step
    by sqrt(1 - (m / L)^2) or better. With longer steps it may not converge; the residual shows it.
    """

    step: float  # in units of 1 / L
    steps: int = 3000
    tolerance: float = 1e-5  # ten times the rounding error measured in single precision

    def __post_init__(self) -> None:
        _check_settings(self)

    def recursion(self, weight: Tensor, bias: Tensor, step: Tensor) -> Step:
        """Return the map v -> v'."""
        return lambda v, z: z + step * (z @ weight.T + bias - z)  # noqa: ARG005


@dataclass(frozen=True)
class PeacemanRachford:
    """v' = 2 (I + a (I - W))^-1 (w + a b) - w,  w = 2 z - v,  z = P(v),  a = step / L.

    Converges for every step > 0. With step = 1 the distance to the fixed point in v shrinks per
    step by sqrt((L - m) / (L + m)) or better, which is much faster than `ForwardBackward` when L is
    much larger than m. The guarantee for steps twice as long is weaker, but they were faster on
    trained networks. One matrix is inverted per solve.
    """

    step: float = 2.0  # in units of 1 / L
    steps: int = 500
    tolerance: float = 1e-5  # ten times the rounding error measured in single precision

    def __post_init__(self) -> None:
        _check_settings(self)

    def recursion(self, weight: Tensor, bias: Tensor, step: Tensor) -> Step:
        """Return the map v -> v'."""
        identity = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        inverse = torch.linalg.inv(identity + step * (identity - weight))

        def advance(v: Tensor, z: Tensor) -> Tensor:
            w = 2 * z - v
            return 2 * torch.mm(w + step * bias, inverse.T) - w

        return advance


def iterates(
    method: Splitting, weight: Tensor, bias: Tensor, project: Project = torch.relu
) -> Iterator[Iterate]:
    """Yield the states after 0, 1, 2, ... steps from zero until all rows converge or steps run out.

    Each row stops by its own residual, so its state does not depend on the other rows. The distance
    from z to the equilibrium is at most 2 (L / m) ||p - z||, with p as in `Iterate`. The residual
    is that of a step of size 1 / L. The residual of a full step, P(W z + b) - z, is up to L times
    as large: with a large W, rounding errors alone would exceed the tolerance.

    Args:
        method: The splitting method.
        weight: W [D, D].
        bias: b [N, D].
        project: P; relu by default.
    """
    with torch.no_grad():
        unit: Tensor = 1 / torch.linalg.matrix_norm(torch.eye(len(weight)).to(weight) - weight, 2)
    advance = method.recursion(weight, bias, method.step * unit)
    v = z = torch.zeros_like(bias)
    residual = _residual(z, weight, bias, project, unit)
    steps = torch.zeros(len(bias), dtype=torch.long, device=bias.device)
    yield Iterate(z, residual, steps)
    for _ in range(method.steps):
        moving = ~(residual <= method.tolerance)  # a NaN residual has not converged
        if not moving.any():
            return
        v = torch.where(moving[:, None], advance(v, z), v)
        z = project(v)
        residual = _residual(z, weight, bias, project, unit)
        steps = steps + moving
        yield Iterate(z, residual, steps)


def solve_monotone(
    method: Splitting, weight: Tensor, bias: Tensor, project: Project = torch.relu
) -> Iterate:
    """Return the last of `iterates`, without gradient.

    A row with a residual above the tolerance has not converged.
    """
    with torch.no_grad():
        for iterate in iterates(method, weight, bias, project):
            last = iterate
    return last


def equilibrium(method: Splitting, weight: Tensor, bias: Tensor) -> Tensor:
    """Return z = relu(W z + b), [N, D], with the gradient of the implicit function theorem.

    Args:
        method: The splitting method, used for the forward and the backward solve.
        weight: W [D, D], differentiable.
        bias: b [N, D], differentiable.
    """
    return cast(Tensor, _Equilibrium.apply(weight, bias, method))  # type: ignore[no-untyped-call]


def adjoint(method: Splitting, weight: Tensor, active: Tensor, cotangent: Tensor) -> Iterate:
    """Solve y = J (W^T y + v), J = diag(active): y is the gradient of <v, z*> in the bias.

    y is linear in v, and v is scaled to unit size for the solve. The gradient of a saturated loss
    can be so small that its square underflows to zero.

    Args:
        method: The splitting method.
        weight: W [D, D].
        active: [N, D] bool, the coordinates where relu is active.
        cotangent: v [N, D].
    """
    scale = cotangent.abs().amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    solution = solve_monotone(
        method, weight.T, cotangent / scale, lambda v: torch.where(active, v, 0.0)
    )
    return solution._replace(state=solution.state * scale)


class _Equilibrium(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, method: Splitting) -> Tensor:
        state = solve_monotone(method, weight, bias).state
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
        # Where p = 0, the row has converged if z = 0 too.
        relative = gap / size.clamp(min=torch.finfo(z.dtype).tiny)
        # A state so large that its square overflows has not converged.
        return torch.where(size.isfinite(), relative, torch.inf)


def _check_settings(method: Splitting) -> None:
    if not (method.step > 0 and method.steps >= 1 and method.tolerance > 0):
        raise ValueError(
            f"a splitting method needs step > 0, steps >= 1 and tolerance > 0, got {method}."
        )
