"""Which adversaries a budget buys, given what the target is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from saddlepoint.attack.aim import mean_of_losses
from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.fab import FAB, own_facet
from saddlepoint.attack.loss import cross_entropy, margin, targeted_margin
from saddlepoint.attack.oracle import grants
from saddlepoint.attack.pgd import PGD
from saddlepoint.attack.rays import RayS
from saddlepoint.attack.space import Ball
from saddlepoint.attack.square import Square
from saddlepoint.auditing.answering import AtAnswer, answers_otherwise
from saddlepoint.defense import Access, Defense, Plain
from saddlepoint.game import Adversary, Direct, MultiTarget, Restarts, Threat, Transfer
from saddlepoint.game.standard import dlr_or_margin, targeted_dlr_or_margin
from saddlepoint.gradients import Backprop, Checkpointed, EoT, Estimator, Phantom, Rule

Budget = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True)
class Spending:
    """How much of everything a budget buys."""

    steps: int  # of each APGD run
    targets: int  # classes that are targeted one by one
    queries: int  # of score- and decision-based attacks
    draws: int  # per EoT gradient, and per verdict, of a random defence
    boundary: int  # steps of FAB per target; 0: no FAB
    starts: int  # of a short PGD; 0: none


SPENDING: dict[Budget, Spending] = {
    "quick": Spending(steps=10, targets=0, queries=0, draws=8, boundary=0, starts=0),
    "standard": Spending(steps=30, targets=3, queries=300, draws=20, boundary=0, starts=0),
    "thorough": Spending(steps=100, targets=9, queries=5000, draws=50, boundary=100, starts=40),
}


def compose(defense: Defense, threat: Threat, budget: Budget, solves: frozenset[str] = frozenset()) -> tuple[Adversary, ...]:
    """The adversaries, cheap ones first, against a defence that solves for fixed points at the sites `solves`."""
    spend, space = SPENDING[budget], threat.space
    access = threat.access if grants(defense.grants, threat.access) else defense.grants
    if access != "gradient":
        free = _gradient_free(defense, access, space, replace(spend, queries=max(spend.queries, 200)))
        return tuple(AtAnswer(sent) for sent in free) if answers_otherwise(defense) else free
    estimator: Estimator = EoT(max(spend.draws // 2, 1)) if defense.random else Backprop()
    stop = not defense.random and defense.unit == "example"
    purse = _Purse.of(defense, threat, estimator)
    apgd = Direct("apgd-ce", APGD(min(spend.steps, purse.steps)), loss=cross_entropy, estimator=estimator, stop_at_success=stop)
    longer = replace(apgd, name="apgd-dlr", attack=APGD(min(2 * spend.steps, purse.steps)), loss=dlr_or_margin)
    suite: list[Adversary] = [apgd, longer]
    # The implicit gradient, which all others use, is the slope of a fixed point. Where the solver has not reached one, the slope of
    # its own steps is right, and that of a few steps from where it stopped often leads further.
    ways: dict[str, Rule] = {"through": Checkpointed(), "unrolled": Phantom(steps=5, damping=0.5)} if solves else {}
    suite += [replace(apgd, name=f"apgd-{way}", rules=dict.fromkeys(solves, rule)) for way, rule in ways.items()]
    if targets := purse.times(apgd, spend.targets):
        suite.append(MultiTarget(replace(apgd, name="apgd-t"), targets, targeted_dlr_or_margin))
    fab = Direct("fab-t", FAB(max(spend.boundary, 1), facet=own_facet), stop_at_success=stop)
    if not defense.random and spend.boundary and (targets := purse.times(fab, spend.targets)):
        suite.append(MultiTarget(fab, targets, targeted_margin))
    # APGD's first step is two radii long and forgets where it started; short steps from many starts find corners it misses.
    pgd = replace(apgd, name="pgd", attack=PGD(20), loss=margin)
    if starts := purse.times(pgd, spend.starts):
        suite.append(Restarts(pgd, starts))
    if answers_otherwise(defense):
        suite = [*(AtAnswer(sent) for sent in suite), replace(apgd, name="apgd-views", aim=mean_of_losses)]
    if defense.static is not None and not isinstance(defense, Plain):
        static = Plain(defense.static)
        suite.append(Transfer(replace(apgd, estimator=Backprop(), stop_at_success=False), static))
    if spend.queries and space.p != 1:
        square = _gradient_free(defense, "score", space, spend)[0]
        suite.append(AtAnswer(square) if answers_otherwise(defense) else square)
    return tuple(suite)


@dataclass(frozen=True)
class _Purse:
    """What the threat model's queries pay for."""

    passes: int  # per example and adversary
    slope: int  # passes of one gradient
    verdict: int  # passes by which a combination of attacks tells whether one of them won

    @classmethod
    def of(cls, defense: Defense, threat: Threat, estimator: Estimator) -> _Purse:
        # One pass is a look at the clean image, another one orders the targets.
        purse = cls((threat.queries or 2**62) - 2, estimator.cost, threat.draws if defense.random else 1)
        if purse.steps < 1:
            raise ValueError(
                f"{threat.queries} queries per example do not pay for one step along a gradient, which takes "
                f"{2 * purse.slope + 2}. Give the threat model more, or access='score'."
            )
        return purse

    @property
    def steps(self) -> int:
        """Steps of one attack that ends with a reading."""
        return self.passes // self.slope - 1

    def times(self, direct: Direct, most: int) -> int:
        """How often an attack can be repeated, its point and its peak looked at each time."""
        return min(self.passes // (self.slope * direct.attack.calls + 2 * self.verdict), most)


def _gradient_free(defense: Defense, access: Access, space: Ball, spend: Spending) -> tuple[Adversary, ...]:
    estimator: Estimator = EoT(max(spend.draws // 4, 1)) if defense.random else Backprop()
    square = Direct("square", Square(spend.queries), estimator=estimator)
    rays = Direct("rays", RayS(spend.queries), estimator=estimator)
    if access == "decision" and space.p != math.inf:
        raise ValueError(
            f"with labels only, a target can be attacked in Linf (RayS), not in {space}. Give score access, or use Linf."
        )
    if access == "decision" and defense.coupled:
        raise ValueError("with labels only, rows must answer independently (RayS); these answer together. Give score access.")
    if space.p == 1:
        raise ValueError("without gradients, a target can be attacked in Linf and L2 (Square), not in L1.")
    return (rays,) if access == "decision" else (square, rays) if space.p == math.inf and not defense.coupled else (square,)
