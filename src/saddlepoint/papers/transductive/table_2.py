"""Table 2: DENT in batches as they come."""

from __future__ import annotations

from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.dent import (
    ATTACKS,
    ON_MODULE,
    Batched,
    gains,
    notes,
    played,
    table,
)
from saddlepoint.papers.transductive.experiment import Lab, apart, right

COLUMNS = (ON_MODULE, *ATTACKS)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    found = {base: played(lab, base, by_label=False) for base in lab.setting.dent.bases}
    papers = {name: row[2:] for name, row in published.TABLE_2.items()}
    return lab.result(
        EXPERIMENTS[1],
        [table(lab, found, COLUMNS), gains(lab, found, COLUMNS, papers)],
        notes=[
            *notes(lab, found),
            f"{ON_MODULE}: {lab.setting.module} on DENT as a module, rows dropped as they fall",
        ],
        findings=[finding(base, one) for base, one in found.items()],
    )


def finding(base: str, found: Batched) -> str:
    """How far AutoAttack overrates DENT, and what the strongest attack leaves of its gain."""
    episodes = found.episodes
    lowest = min(COLUMNS, key=lambda name: float(right(episodes[name]).mean()))
    return (
        f"{base}: {lowest} is the strongest attack and leaves DENT {apart(episodes[lowest], found.base.auto)} from the static "
        f"network under AA; over it {ON_MODULE} overrates DENT by {apart(episodes[ON_MODULE], episodes[lowest])} and AA by "
        f"{apart(episodes['AA'], episodes[lowest])}."
    )
