"""Remedies for batches whose rows influence each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.variant import Variant
from saddlepoint.evaluation import Direct
from saddlepoint.phrases import how_often


def continued_rows(p: Planner) -> Iterator[Variant]:
    """More steps of single rows, from the worst batch on, where rows influence each other.

    An attack of all rows from the start would have to break those again that are broken.
    """
    if p.rounds is None:
        return
    continued = p.rounds.continued(p.evidence.points)
    for times in (4, 2, 1):
        yield Variant(
            f"{p.rounds.direct.name} by row, continued",
            p.on_answer(continued.map_direct(partial(_scaled, times=times))),
            f"rows that are still correct, with {how_often(times)} the steps, while all others "
            "keep their worst points",
        )


def _scaled(direct: Direct, times: int) -> Direct:
    return direct.scaled(times)
