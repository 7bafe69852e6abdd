"""Attacks on single rows of batches whose rows influence each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.aims import last_value_summed_gradient
from saddlepoint.attacks.losses import margin
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import Parts
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.evaluation import Direct, RowRounds
from saddlepoint.gradients import BPDA
from saddlepoint.phrases import count

_LONGER = (2, 4, 8)  # times the steps of the first round, in later rounds


def row_attacks(parts: Parts) -> Iterator[Choice]:
    """APGD with a best point and a step size for every row of a batch, in rounds.

    Attacks of whole batches are for rows that influence each other much, these are for rows that
    depend on their own pixels most.
    """
    if not parts.single_rows or not parts.budget.targets:
        return
    first, *later = _rounds(parts)
    yield Choice(
        RowRounds(first, tuple(later)),
        "rows influence each other: each row has its own best point and step size, while what rows "
        f"share stays fixed for a round; {count(1 + len(later), 'round')} on rows that are still "
        f"correct{parts.why()}",
    )


def _rounds(parts: Parts) -> Iterator[Direct]:
    """Two losses and several gradients, with more and more steps while fewer rows are left.

    The last two rounds are those that remedies and diagnostics continue.
    """
    exact = replace(parts.apgd, stop_at_success=True)
    apgd = exact
    named = parts.facts.traits.places(TraitName.SITES)
    if not set(named) <= set(parts.facts.bypassed):
        apgd = replace(apgd, rules={**apgd.rules, **dict.fromkeys(named, BPDA())})
    views = apgd
    if parts.facts.has(TraitName.VIEWS_DISAGREE):
        views = replace(apgd, aim=last_value_summed_gradient)
    yield views
    yield replace(apgd, name="apgd-margin", loss=margin)
    if exact is not apgd:
        # It may cost several times as much as the identity, so it comes when few rows are left.
        yield replace(exact, name="apgd-exact")
    # Gradients of earlier views lead to the answer of one defense and away from that of another.
    aims = (apgd,) if views is apgd else (views, apgd)
    for times in _LONGER:
        yield from (one.scaled(times) for one in aims)
