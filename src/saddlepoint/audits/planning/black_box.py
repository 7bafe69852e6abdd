"""Adversaries that need no gradients of the defense: queries, score differences, transfer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.square import Square
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.facts import UNKNOWN
from saddlepoint.audits.planning.parts import FEW_TARGETS, Parts
from saddlepoint.defenses import Access, Defense, Plain
from saddlepoint.evaluation import Adversary, Direct, MultiTarget, Threat, Transfer
from saddlepoint.evaluation.suites import targeted_dlr_or_margin
from saddlepoint.gradients import SPSA, Backprop, EoT, Estimator
from saddlepoint.phrases import count

_LOOKAHEAD = 32  # proposals of Square in one batch: late searches have few rows
_GRADIENT_STEPS = 10  # on rows that a short search brought close to success
_MASKED_QUERIES = 4  # times as many queries where gradients are masked or not available
# Rows are queried longer if a search leaves at most this fraction of the clean lead: after the
# first search, the second and the third. Tuned on third-party nets.
_CLOSE_AFTER_SEARCH = (0.75, 0.5, 0.15)


def query_attacks(
    parts: Parts, access: Access, *, include_decision: bool = False
) -> Iterator[Choice]:
    """Square on scores and RayS on labels.

    Of a plain net with usable gradients only Square is run, unless `include_decision` is set.
    """
    defense = parts.defense
    more = parts.facts.masked or defense.grants != "gradient"
    queries = parts.budget.queries * (_MASKED_QUERIES if more else 1)
    estimator: Estimator = Backprop()
    if defense.random:
        estimator = EoT(max(parts.budget.draws // 4, 1))
    _check_supported(defense, access, parts.threat)
    gradients = grants(parts.threat.access, "gradient") and not parts.facts.masked
    plain = isinstance(defense, Plain) and gradients and not include_decision
    if access == "score":
        reason = "scores only: independent of gradients"
        if plain and parts.budget.square_schedule and parts.escalates:
            yield Choice(
                _square_schedule(parts), f"{reason}; longer where it comes close to success"
            )
        else:
            square = Square(queries, lookahead=_lookahead(parts))
            yield Choice(Direct("square", square, estimator=estimator), reason)
    linf = parts.threat.space.p == math.inf
    if access == "decision" or (linf and not defense.coupled and not plain):
        rays = Direct("rays", RayS(queries), estimator=estimator)
        yield Choice(rays, "labels only: independent of gradients and scores")


def _lookahead(parts: Parts) -> int:
    """Proposals of Square in one batch: one where a query may change the next or is limited."""
    defense = parts.defense
    steady = not defense.random and defense.unit == "example" and defense.memory == "none"
    return _LOOKAHEAD if steady and parts.threat.queries is None else 1


def _square_schedule(parts: Parts) -> Adversary:
    """A short search on all rows, then longer ones on rows that came close to success."""
    searches: list[Adversary] = [
        Direct("square", Square(queries, rescale=True, lookahead=_lookahead(parts)))
        for queries in parts.budget.square_schedule
    ]
    # Rows that a few gradient steps misclassify are broken by other attacks of the plan.
    gradient = replace(parts.apgd, attack=APGD(_GRADIENT_STEPS), loss=margin)
    then = searches.pop()
    while searches:
        first = searches.pop()
        unless = None if searches else gradient
        then = parts.escalate(first, then, _CLOSE_AFTER_SEARCH[len(searches)], unless)
    return then


def score_difference_attacks(parts: Parts, why: str) -> Iterator[Choice]:
    """APGD with gradients estimated from score differences."""
    if parts.budget.samples:
        spsa = SPSA(parts.budget.samples, difference_width(parts.threat))
        direct = Direct("apgd-spsa", APGD(20), loss=margin, estimator=spsa)
        yield Choice(direct, f"{why}: gradients from score differences")


def difference_width(threat: Threat) -> float:
    """The width of score differences, in pixels.

    In Linf a quarter of the radius, which is wider than the steps of most quantizers.
    """
    space = threat.space
    return max(space.radius / 4, 1e-3) if space.p == math.inf else 1e-2


def transfer_attacks(parts: Parts) -> Iterator[Choice]:
    """Points of highest loss of the static net: their gradients do not depend on the defense."""
    static = parts.defense.static
    if static is None or isinstance(parts.defense, Plain):
        return
    source = Plain(static)
    apgd = replace(parts.apgd, estimator=Backprop(), stop_at_success=False, rules={})
    reason = "points of highest loss of the static net"
    yield Choice(Transfer(apgd, source), f"{reason}, cross-entropy")
    on_margin = replace(apgd, name="apgd-margin", loss=margin)
    yield Choice(Transfer(on_margin, source), f"{reason}, margin")
    if parts.budget.targets:
        targeted = MultiTarget(replace(apgd, name="apgd-t"), FEW_TARGETS, targeted_dlr_or_margin)
        yield Choice(Transfer(targeted, source), f"{reason}, {count(FEW_TARGETS, 'target class')}")
    if parts.budget.queries and parts.threat.space.p != 1:
        on_source = replace(parts, defense=source, facts=UNKNOWN)
        for choice in query_attacks(on_source, "score", include_decision=True):
            yield Choice(Transfer(choice.adversary, source), f"{choice.reason}, on the static net")


def _check_supported(defense: Defense, access: Access, threat: Threat) -> None:
    """Raise ValueError if no attack without gradients exists for this norm and access."""
    if access == "decision" and threat.space.p != math.inf:
        raise ValueError(
            "with labels only, a target can be attacked in Linf (RayS), "
            f"not in {threat.space}. Give score access, or use Linf."
        )
    if access == "decision" and defense.coupled:
        raise ValueError(
            "with labels only, rows must be independent (RayS); the rows of this target are "
            "coupled. Give score access."
        )
    if threat.space.p == 1:
        raise ValueError(
            "without gradients, a target can be attacked in Linf and L2 (Square), not in L1."
        )
