"""An equilibrium network with its solver as one module: what is trained and kept by name."""

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

EXACT = Implicit()


class Injected(NamedTuple):
    """A solve without its gradient."""

    u: Tensor  # [N, K]
    z: Tensor  # [N, D]


class Solved(nn.Module):
    """[N, ...] -> [N, C]: the answer of the defense `DEQ(net, ...)`, with one way for gradients to cross the solver.

    `Implicit` trains with the exact gradient of Yang et al. 2022, `Detached` and an `after` of several steps with the unrolled one.
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
        """What is audited: a gradient that suits training need not be the attacker's best."""
        return DEQ(self.net, method=self.method, after=self.after)

    def forward(self, x: Tensor) -> Tensor:
        keys = Keys.of(0, torch.arange(len(x), device=x.device))  # none is tossed
        defense = self.defense
        return defense.trace(x, Context(keys, {SITE: self.rule}, defense.reads)).last

    def equilibrium(self, x: Tensor) -> Injected:
        """Where the solve ends, as a constant, and what it was fed, which is not."""
        u = self.net.inject(x)
        with torch.no_grad():
            z = self.method(lambda z, rows: self.net.cell(z, u[rows]), self.net.start(u)).best
        return Injected(u, z)

    def settled(self, x: Tensor) -> SolveInfo:
        """How near to a fixed point the answer to each example is made."""
        return self.defense.settled(x)

    def longer(self, steps: int) -> Solved:
        """The same network, whose solver makes that many steps more."""
        return Solved(
            self.net,
            method=replace(self.method, steps=max(self.method.steps + steps, 1)),
            after=self.after,
            rule=self.rule,
        )


def digits_deq_exact() -> Solved:
    """A state of 32x4x4 for the 8x8 digits, to be trained with exact gradients; forward and backward solves of 18 and 20 steps.

    Nothing bounds the cell: that it has an equilibrium is up to training.
    """
    rule = Implicit(Broyden(steps=20, tolerance=1e-3))
    return Solved(_digits_net(), method=Broyden(steps=18, tolerance=1e-3), rule=rule)


def digits_deq_unrolled() -> Solved:
    """The same network, to be trained with the gradient of one undamped and five damped steps after a solve of 8 steps."""
    return Solved(
        _digits_net(),
        method=Broyden(steps=8, tolerance=1e-3),
        after=Unrolled(6, damping=0.5),
        rule=Detached(),
    )


def _digits_net() -> ConvDEQNet:
    return ConvDEQNet(image=(1, 8, 8), channels=32, stride=2, gain=math.inf)
