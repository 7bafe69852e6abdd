"""An attack on equilibrium models that looks for state, adjoint and input at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import Loss, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Oracle, grants
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access, Defense, Picard, Solution, Solver, Status
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.properties import AdversaryProperties
from saddlepoint.gradients import Backprop, Rule, Solve
from saddlepoint.gradients.implicit import SolveRule
from saddlepoint.gradients.solve import Point, crossed
from saddlepoint.solvers import SolverStats


@dataclass(frozen=True)
class JointEquilibrium(Adversary):
    """The fixed point of state, adjoint and input together, instead of solves inside every attack step.

    z <- f(z; x),  u <- (df/dz)^T u + dL(z)/dz,  x <- project(x + step ascent((df/dx)^T u)),  by any fixed-point method.
    Gurumurthy et al. 2021, in the form of Yang et al. 2022, Eq. 12; there x descends along the plain gradient, here it climbs
    within the set in the steepest direction of the norm. An iteration costs one evaluation of f and one product, and is charged as
    a forward and a backward pass. Only the ends of the solve are proposed: on the way, the loss of a state that is no fixed point
    says nothing about the defense. A row stops at a fixed point of all three, so the tolerance must be small against a step of x.
    Methods that extrapolate, Anderson and Broyden, go astray where the projection bends the path of x: Picard is the safe choice.
    """

    name: str
    method: Solver = field(default_factory=lambda: Picard(steps=100, tolerance=1e-6))
    loss: Loss = margin
    aim: Aim = last
    site: str = "solve"
    keep: frozenset[str] | None = None  # names of the views that the aim reads; None: all
    step_size: float | None = None  # in units of the input; None: 2.5 radius / steps
    random_start: bool = True
    needs: ClassVar[Access] = "gradient"

    @property
    def properties(self) -> AdversaryProperties:
        return AdversaryProperties(self.needs, anticipates_adaptation=True, custom_rules=True)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not grants(context.access(defense), self.needs):
            raise PermissionError(
                f"{self.name} asks for gradient access, but {context.access(defense)} access is all there is."
            )
        if defense.coupled:
            raise ValueError(
                f"{self.name} solves for each row by itself, but rows of this defense answer only together. Use Direct."
            )
        stats = SolverStats.of(len(x), x.device)
        objective = AttackObjective([defense], y, self.loss, self.aim, {}, self.keep, stats=stats)
        oracle = Oracle(
            objective, Backprop(), context.meter, context.rows, context.simulated_keys()
        )
        opening = _Opening()
        self.planted(oracle, opening).score(x)
        z = opening.z
        start = context.threat.space.sample(x, context.attacker_keys()) if self.random_start else x
        walk = _Walk(self, oracle, context.threat.space, x, z[:1])
        joined = torch.cat([part.flatten(1) for part in (z, torch.zeros_like(z), start)], 1)
        solution = self.method(walk, joined, keep=[self.method.steps])
        best = BestSoFar(x, coupled=False)
        for end in (solution.best, solution.states[self.method.steps]):
            point = context.threat.space.project(walk.parts(end)[2], x)
            best.update(point, oracle.score(point))
        context.meter.note(context.rows, stats.evaluations + stats.products)
        return best.result

    def planted(self, oracle: Oracle, rule: Rule) -> Oracle:
        """The same oracle with a rule at the site."""
        assert isinstance(oracle.objective, AttackObjective)  # the one made above
        return replace(oracle, objective=replace(oracle.objective, rules={self.site: rule}))


@dataclass(frozen=True)
class _Walk:
    """One iteration of all three, as a map of their concatenation [M, D + D + d]."""

    joint: JointEquilibrium
    oracle: Oracle
    space: Ball
    center: Tensor  # [N, ...]
    like: Tensor  # [1, ...] a state

    def __call__(self, joined: Tensor, rows: Tensor) -> Tensor:
        z, u, x = self.parts(joined)
        center = self.center[rows]
        planted = _Planted(z, u)
        x = self.space.project(x, center)
        oracle = self.oracle if len(rows) == len(self.oracle) else self.oracle[rows]
        grad = self.joint.planted(oracle, planted).gradient(x).grad
        step = (
            2.5 * self.space.radius / self.joint.method.steps
            if self.joint.step_size is None
            else self.joint.step_size
        )
        x = self.space.project(x + step * self.space.ascent(grad, x), center)
        return torch.cat([part.flatten(1) for part in (planted.f, planted.adjoint, x)], 1)

    def parts(self, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = self.like.numel()
        z = joined[:, :size]
        u = joined[:, size : 2 * size]
        x = joined[:, 2 * size :]
        n = len(joined)
        state = self.like.shape[1:]
        image = self.center.shape[1:]
        return z.reshape(n, *state), u.reshape(n, *state), x.reshape(n, *image)


class _Opening(SolveRule):
    """Learns where the defense starts its solve, and goes no further."""

    z: Tensor

    def attach(self, solve: Solve) -> Solution:
        self.z = solve.start.state
        return _shown(solve, self.z)


class _Planted(SolveRule):
    """Shows a given state as if the solve had ended there, and hands the adjoint given with it to f."""

    f: Tensor  # f(z; x)
    adjoint: Tensor  # (df/dz)^T u + dL(z)/dz, once the gradient has been asked for

    def __init__(self, z: Tensor, u: Tensor) -> None:
        self.z = z
        self.u = u

    def attach(self, solve: Solve) -> Solution:
        point = Point.at(solve, "best", self.z, solve.rows)
        self.f = point.f.detach()

        def pull(cotangents: list[Tensor | None]) -> list[Tensor | None]:
            (c,) = cotangents
            self.adjoint = point.vjp(self.u) if c is None else point.vjp(self.u) + c
            return [self.u]

        return _shown(solve, crossed([point], pull)[0])


def _shown(solve: Solve, z: Tensor) -> Solution:
    """A solution that is nothing but a state."""
    if solve.read:
        raise ValueError(
            "a joint solve has no states on the way, but the defense shows some. Name the views of its final state with `keep`."
        )
    rows = torch.zeros_like(solve.rows)
    nothing = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    return Solution(
        z,
        {},
        None,
        nothing[None],
        nothing,
        rows,
        rows.to(torch.int8) + int(Status.OUT_OF_STEPS),
        None,
    )
