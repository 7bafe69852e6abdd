"""Remedies for batches whose rows influence each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.variant import Variant
from saddlepoint.evaluation import Direct
from saddlepoint.phrases import how_often

_ROUNDS = 2


def continued_rows(p: Planner) -> Iterator[Variant]:
    """More steps of single rows, from the worst batch on, where rows influence each other.

    An attack of all rows from the start would have to break those again that are broken.
    """
    if p.rounds is None:
        return
    for times in (4, 2):
        longer = p.rounds.map_direct(partial(_scaled, times=times))
        adversary = replace(longer, rounds=_ROUNDS, start=p.evidence.points)
        yield Variant(
            f"{p.rounds.direct.name} by row-continued",
            p.on_answer(adversary),
            f"rows that are still correct, with {how_often(times)} the steps, while all others "
            "keep their worst points",
        )


def _scaled(direct: Direct, times: int) -> Direct:
    return direct.scaled(times)
