"""An attack on equilibrium models that solves for state, adjoint and input at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last_view
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
    """One fixed point of state, adjoint and input, instead of a solve inside every attack step.

    z <- f(z; x),  u <- (df/dz)^T u + dL(z)/dz,  x <- project(x + step ascent((df/dx)^T u)),
    with any fixed-point solver. Gurumurthy et al. 2021, in the form of Yang et al. 2022, Eq. 12.
    There x descends along the plain gradient; here x ascends within the perturbation set in the
    steepest direction of the norm.

    An iteration costs one evaluation of f and one vector-Jacobian product, and is charged as one
    forward and one backward pass. Only the end points of the solve are proposed: before that, the
    state is not a fixed point, so its loss says nothing about the defense. A row stops at a fixed
    point of all three, so the tolerance must be small compared with a step of x. Solvers that
    extrapolate (Anderson, Broyden) can diverge where the projection bends the path of x; Picard is
    the safe choice.

    Args:
        name: the name shown in tables.
        method: the fixed-point solver; default: 100 Picard steps.
        loss: per-example loss; default: margin.
        aim: which views of the defense the loss is taken of; default: the last view.
        site: name of the solve inside the defense.
        keep: names of the views that the aim reads; None: all.
        step_size: step size of x in units of the input; None: 2.5 radius / steps.
        random_start: start at a random point of the perturbation set instead of the clean input.
    """

    name: str
    method: Solver = field(default_factory=lambda: Picard(steps=100, tolerance=1e-6))
    loss: Loss = margin
    aim: Aim = last_view
    site: str = "solve"
    keep: frozenset[str] | None = None
    step_size: float | None = None
    random_start: bool = True
    needs: ClassVar[Access] = "gradient"

    @property
    def properties(self) -> AdversaryProperties:
        return AdversaryProperties(self.needs, anticipates_adaptation=True, custom_rules=True)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self._require(context, defense)
        stats = SolverStats.of(len(x), x.device)
        objective = AttackObjective([defense], y, self.loss, self.aim, {}, self.keep, stats=stats)
        oracle = Oracle(
            objective, Backprop(), context.meter, context.rows, context.simulated_keys()
        )
        initial = _ReadInitialState()
        self.with_rule(oracle, initial).score(x)
        z = initial.z
        start = context.threat.space.sample(x, context.attacker_keys()) if self.random_start else x
        iteration = _Iteration(self, oracle, context.threat.space, x, z[:1])
        joint = torch.cat([part.flatten(1) for part in (z, torch.zeros_like(z), start)], 1)
        solution = self.method(iteration, joint, keep=[self.method.steps])
        best = BestSoFar(x, coupled=False)
        for end in (solution.best, solution.states[self.method.steps]):
            point = context.threat.space.project(iteration.parts(end)[2], x)
            best.update(point, oracle.score(point))
        context.meter.note(context.rows, stats.evaluations + stats.products)
        return best.result

    def with_rule(self, oracle: Oracle, rule: Rule) -> Oracle:
        """The same oracle with a gradient rule at the solve."""
        assert isinstance(oracle.objective, AttackObjective)  # the one built in `move`
        return replace(oracle, objective=replace(oracle.objective, rules={self.site: rule}))

    def _require(self, context: AttackContext, defense: Defense) -> None:
        available = context.access(defense)
        if not grants(available, self.needs):
            raise PermissionError(
                f"{self.name} needs {self.needs} access, but only {available} access is available."
            )
        if defense.coupled:
            raise ValueError(
                f"{self.name} solves for each row separately, but the rows of this defense depend "
                "on each other. Use Direct."
            )


@dataclass(frozen=True)
class _Iteration:
    """One iteration of state, adjoint and input, as a map of their concatenation [M, D + D + d]."""

    adversary: JointEquilibrium
    oracle: Oracle
    space: Ball
    center: Tensor  # [N, ...]
    state: Tensor  # [1, ...] a state, for its shape

    def __call__(self, joint: Tensor, rows: Tensor) -> Tensor:
        z, u, x = self.parts(joint)
        center = self.center[rows]
        rule = _FixedState(z, u)
        x = self.space.project(x, center)
        oracle = self.oracle if len(rows) == len(self.oracle) else self.oracle[rows]
        grad = self.adversary.with_rule(oracle, rule).gradient(x).grad
        x = self.space.project(x + self._step() * self.space.ascent(grad, x), center)
        return torch.cat([part.flatten(1) for part in (rule.f, rule.adjoint, x)], 1)

    def parts(self, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """State, adjoint and input of a concatenation."""
        size = self.state.numel()
        z = joint[:, :size]
        u = joint[:, size : 2 * size]
        x = joint[:, 2 * size :]
        n = len(joint)
        state = self.state.shape[1:]
        image = self.center.shape[1:]
        return z.reshape(n, *state), u.reshape(n, *state), x.reshape(n, *image)

    def _step(self) -> float:
        if self.adversary.step_size is None:
            return 2.5 * self.space.radius / self.adversary.method.steps
        return self.adversary.step_size


class _ReadInitialState(SolveRule):
    """Reads the state from which the defense starts its solve, and does not solve."""

    z: Tensor

    def attach(self, solve: Solve) -> Solution:
        self.z = solve.start.state
        return _solution_at(solve, self.z)


class _FixedState(SolveRule):
    """Returns a given state as the solution; the backward pass applies a given adjoint to f."""

    f: Tensor  # f(z; x)
    adjoint: Tensor  # (df/dz)^T u + dL(z)/dz, set by the backward pass

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

        return _solution_at(solve, crossed([point], pull)[0])


def _solution_at(solve: Solve, z: Tensor) -> Solution:
    """A solution that consists of a state only."""
    if solve.read:
        raise ValueError(
            "a joint solve has no intermediate states, but the defense has views of some. "
            "Name the views of its final state with `keep`."
        )
    rows = torch.zeros_like(solve.rows)
    zeros = torch.zeros(len(z), dtype=z.dtype, device=z.device)
    status = rows.to(torch.int8) + int(Status.OUT_OF_STEPS)
    return Solution(z, {}, None, zeros[None], zeros, rows, status, None)
