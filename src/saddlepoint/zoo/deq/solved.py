"""An equilibrium network and its solver as one module that can be trained and stored."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Broyden, Context, Solver
from saddlepoint.gradients import Detached, Implicit, Rule
from saddlepoint.rng import Keys
from saddlepoint.solvers import SolveInfo
from saddlepoint.zoo.deq.model import AFTER, DEQ, METHOD, SITE, Unrolled
from saddlepoint.zoo.nets import ConvDEQNet
from saddlepoint.zoo.nets.equilibrium import Equilibrium

EXACT = Implicit(at="following")  # the order of the released code of Yang et al. 2022


class Injected(NamedTuple):
    """The input and the result of a solve."""

    u: Tensor  # [N, K] injected features, with gradient
    z: Tensor  # [N, D] the solver's best state, without gradient


class Solved(nn.Module):
    """The answer of the defense `DEQ(net, ...)` as a module [N, ...] -> [N, C] for training.

    The gradient crosses the solver by one fixed rule. `Implicit` trains with the exact gradient of
    Yang et al. 2022. `Detached` with an `after` of several steps trains with the unrolled gradient.

    Args:
        net: The equilibrium network.
        method: The solver.
        after: The steps from the solver's best state to the final state.
        rule: The gradient rule at the solver; by default `Implicit(at="following")`, the exact
            gradient in the order of the released code of Yang et al. 2022.
    """

    def __init__(
        self,
        net: Equilibrium,
        *,
        method: Solver = METHOD,
        after: Unrolled = AFTER,
        rule: Rule = EXACT,
    ) -> None:
        super().__init__()
        self.net = net
        self.method = method
        self.after = after
        self.rule = rule

    @property
    def defense(self) -> DEQ:
        """The defense to audit, without a gradient rule: an attacker may choose another one."""
        return DEQ(self.net, method=self.method, after=self.after)

    def forward(self, x: Tensor) -> Tensor:
        # The model is deterministic: the keys are required but never used.
        keys = Keys.of(0, torch.arange(len(x), device=x.device))
        defense = self.defense
        return defense.trace(x, Context(keys, {SITE: self.rule}, defense.reads)).last

    def equilibrium(self, x: Tensor) -> Injected:
        """Return the injected features and the solver's best state for x [N, ...]."""
        u = self.net.inject(x)
        with torch.no_grad():
            z = self.method(lambda z, rows: self.net.cell(z, u[rows]), self.net.start(u)).best
        return Injected(u, z)

    def convergence(self, x: Tensor) -> SolveInfo:
        """Return residual, cost and status of the solve per example; see `DEQ.convergence`."""
        return self.defense.convergence(x)

    def with_extra_steps(self, steps: int) -> Solved:
        """Return the same network with `steps` more solver steps, at least one in total.

        The parameters are shared. A negative number gives fewer steps.
        """
        return Solved(
            self.net,
            method=replace(self.method, steps=max(self.method.steps + steps, 1)),
            after=self.after,
            rule=self.rule,
        )


def digits_deq_exact() -> Solved:
    """Return an untrained network for 8x8 digits and training with exact gradients.

    The state is 32x4x4. The forward solve has 18 steps and the backward solve 20. The cell is not
    constrained, so training decides whether it has an equilibrium.
    """
    rule = Implicit(Broyden(steps=20, tolerance=1e-3), at="following")
    return Solved(_digits_net(), method=Broyden(steps=18, tolerance=1e-3), rule=rule)


def digits_deq_unrolled() -> Solved:
    """Return the same network for training with unrolled gradients.

    A solve of 8 steps is followed by one undamped and five damped steps, which are differentiated.
    """
    return Solved(
        _digits_net(),
        method=Broyden(steps=8, tolerance=1e-3),
        after=Unrolled(6, damping=0.5),
        rule=Detached(),
    )


def _digits_net() -> ConvDEQNet:
    return ConvDEQNet(image=(1, 8, 8), channels=32, stride=2, gain=math.inf)
