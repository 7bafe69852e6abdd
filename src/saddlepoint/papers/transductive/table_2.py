"""Table 2: DENT on batches in natural order."""

from __future__ import annotations

from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.dent import (
    ATTACKS,
    ON_MODULE,
    DENTResult,
    evaluate,
    gains,
    notes,
    table,
)
from saddlepoint.papers.transductive.experiment import Lab, apart, right

COLUMNS = (ON_MODULE, *ATTACKS)


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    lab = Lab.open(request)
    found = {base: evaluate(lab, base, by_label=False) for base in lab.setting.dent.bases}
    papers = {name: row[2:] for name, row in published.TABLE_2.items()}
    return lab.result(
        EXPERIMENTS[1],
        [table(lab, found, COLUMNS), gains(lab, found, COLUMNS, papers)],
        notes=[
            *notes(lab, found),
            f"{ON_MODULE}: {lab.setting.module} on DENT as if it were an ordinary network; "
            "misclassified images leave the batch",
        ],
        findings=[finding(base, one) for base, one in found.items()],
    )


def finding(base: str, found: DENTResult) -> str:
    """Compare DENT with its base network, and AutoAttack with the strongest attack.

    Args:
        base: Name of the base network.
        found: Our result.

    Returns:
        One sentence.
    """
    episodes = found.episodes
    lowest = min(COLUMNS, key=lambda name: float(right(episodes[name]).mean()))
    return (
        f"{base}: {lowest} is the strongest attack; DENT under it minus the static network under "
        f"AA is {apart(episodes[lowest], found.base.auto)}; compared with it, {ON_MODULE} "
        f"overestimates the accuracy of DENT by {apart(episodes[ON_MODULE], episodes[lowest])} and "
        f"AA by {apart(episodes['AA'], episodes[lowest])}."
    )
