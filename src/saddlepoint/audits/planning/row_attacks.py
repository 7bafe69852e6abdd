"""Attacks on single rows of batches whose rows influence each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    depend on their own pixels most. Gradients of earlier views lead to the answer of one defense
    and away from that of another, so there is one attack along them and one along the gradient of
    the last view alone. A remedy continues the stronger one.
    """
    if not parts.single_rows or not parts.budget.targets:
        return
    exact = replace(parts.apgd, stop_at_success=True)
    last = exact
    named = parts.facts.traits.places(TraitName.SITES)
    if not set(named) <= set(parts.facts.bypassed):
        last = replace(last, rules={**last.rules, **dict.fromkeys(named, BPDA())})
    views = replace(last, aim=last_value_summed_gradient)
    other_losses = [replace(last, name="apgd-margin", loss=margin)]
    # It may cost several times as much as the identity, so it comes when few rows are left.
    exact_too = [replace(exact, name="apgd-exact")] if exact is not last else []
    if not parts.facts.has(TraitName.VIEWS_DISAGREE):
        yield _in_rounds(parts, last, [*other_losses, *exact_too])
        return
    yield _in_rounds(parts, views, [*other_losses, *exact_too], ", along gradients of all views")
    alone = replace(last, name="apgd-last-view")
    yield _in_rounds(parts, alone, other_losses, ", along the gradient of the last view")


def _in_rounds(parts: Parts, first: Direct, others: Sequence[Direct], along: str = "") -> Choice:
    """An attack, others of the same length, and the first one with more and more steps.

    Fewer and fewer rows are left. The last two rounds are those that remedies and diagnostics
    continue.
    """
    later = (*others, *(first.scaled(times) for times in _LONGER))
    return Choice(
        RowRounds(first, later),
        "rows influence each other: each row has its own best point and step size, while what rows "
        f"share stays fixed for a round; {count(1 + len(later), 'round')} on rows that are still "
        f"correct{along}{parts.why()}",
    )
