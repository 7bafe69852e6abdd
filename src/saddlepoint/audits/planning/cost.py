"""What an adversary may cost, before it is sent: forward and backward passes per example, at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from saddlepoint.audits.planning.properties import kinds
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Escalate,
    FixedPoint,
    GreedyModelSpace,
    MultiTarget,
    OnExamples,
    Restarts,
    RetrainedEnsemble,
    Transfer,
    WarmStart,
)
from saddlepoint.evaluation.MISSING import LOOKS
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.transductive import Joint
from saddlepoint.gradients import once


class PassCost(NamedTuple):
    """Of one example."""

    forward: int
    backward: int

    def times(self, count: int) -> PassCost:
        return PassCost(count * self.forward, count * self.backward)

    def plus(self, forward: int) -> PassCost:
        return PassCost(self.forward + forward, self.backward)

    @property
    def total(self) -> int:
        return self.forward + self.backward


def price(adversary: Adversary | Joint, draws: int = 1) -> PassCost:
    """At most this many, where the defense is judged over so many draws; an example that falls early costs less."""
    inner: Any = adversary
    match inner:
        case Direct():
            return _direct(inner)
        case MultiTarget():
            return price(inner.direct).plus(2 * draws).times(inner.targets).plus(1)
        case Restarts():
            return price(inner.adversary, draws).plus(2 * draws).times(inner.times)
        case Escalate():
            return _total([price(inner.first, draws), price(inner.then, draws)]).plus(3 * draws)
        case WarmStart():
            return _total([price(inner.first, draws), price(inner.then)]).plus(draws)
        case Transfer() | AdversaryWrapper() | OnExamples():
            return price(inner.adversary, draws)
        case GreedyModelSpace():
            pools = [1 + i * draws for i in range(inner.rounds)]
            rounds = [
                price(inner.direct.lasting(inner.over.patience(m))).times(m).plus(draws)
                for m in pools
            ]
            return _total(rounds)
        case FixedPoint():
            rounds = [
                price(inner.direct).times(draws if i else 1).plus(draws)
                for i in range(inner.rounds)
            ]
            return _total(rounds)
        case RetrainedEnsemble():
            return price(inner.direct).times(inner.models).plus(inner.models)
        case _:
            raise TypeError(f"the price of a {type(adversary).__name__} is not known.")


def entrance(adversary: Adversary, draws: int = 1) -> PassCost:
    """The part of its price that every example pays which stands: a pursuit goes on after those alone that it nearly broke."""
    inner: Any = adversary
    match inner:
        case Escalate():
            return entrance(inner.first, draws)
        case Transfer() | AdversaryWrapper() | OnExamples():
            return entrance(inner.adversary, draws)
        case _:
            return price(inner, draws)


def affordable(adversary: Adversary, draws: int, queries: int | None) -> bool:
    """Do so many queries per example pay for it? Searches without gradients stop where queries end, unless more follows them."""
    parts = kinds(describe(adversary))
    searches = bool(parts & {"Square", "RayS"}) and not parts & {"WarmStart", "Restarts"}
    return queries is None or searches or price(adversary, draws).forward <= queries


def _total(parts: Sequence[PassCost]) -> PassCost:
    return PassCost(sum(part.forward for part in parts), sum(part.backward for part in parts))


def _direct(direct: Direct) -> PassCost:
    calls = direct.attack.calls
    looks = LOOKS if once(direct.estimator) != direct.estimator else 0
    if direct.attack.needs != "gradient":
        return PassCost(calls * direct.estimator.cost + looks, 0)
    forward, backward = direct.estimator.gradient_cost
    return PassCost(calls * forward + looks, (calls - 1) * backward + looks)
