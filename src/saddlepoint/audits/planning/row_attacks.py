"""Attacks on single rows of batches whose rows influence each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from saddlepoint.attacks.losses import margin
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import Parts
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.evaluation import Direct, RowRounds
from saddlepoint.gradients import BPDA
from saddlepoint.phrases import count

_TURNS = 2  # of each attack: with the steps of the budget, then with twice as many


def row_attacks(parts: Parts) -> Iterator[Choice]:
    """APGD with a best point and a step size for every row of a batch, in rounds.

    Attacks of whole batches need few rows that influence each other much. These need a row that
    its own pixels influence most.
    """
    if not parts.single_rows or not parts.budget.targets:
        return
    first, *others = _turns(parts)
    rounds = _TURNS * (1 + len(others)) - len(others) // 2  # the exact gradient has one turn
    yield Choice(
        RowRounds(first, rounds, tuple(others)),
        "rows influence each other: each row has its own best point and step size, while what rows "
        f"share stays fixed for a round; {count(rounds, 'round')} on rows that are still correct"
        f"{parts.why()}",
    )


def _turns(parts: Parts) -> Iterator[Direct]:
    """The attacks that take turns: two losses, and the other gradient at named steps."""
    apgd = replace(parts.apgd, stop_at_success=True)
    named = parts.facts.traits.places(TraitName.SITES)
    if not named or set(named) <= set(parts.facts.bypassed):
        yield apgd
        yield replace(apgd, name="apgd-margin", loss=margin)
        return
    # The identity is the cheapest gradient, so it comes first, while most rows are left. The exact
    # gradient may cost several times as much.
    bpda = replace(apgd, rules={**apgd.rules, **dict.fromkeys(named, BPDA())})
    yield bpda
    yield replace(bpda, name="apgd-margin", loss=margin)
    yield replace(apgd, name="apgd-exact")
