"""Table 2: DENT on batches in natural order."""

from __future__ import annotations

from saddlepoint.papers.cells import correct_rate
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
from saddlepoint.papers.transductive.experiment import (
    TransductiveExperiment,
    format_difference,
)

COLUMNS = (ON_MODULE, *ATTACKS)


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    experiment = TransductiveExperiment.open(request)
    found = {
        base: evaluate(experiment, base, by_label=False) for base in experiment.setting.dent.bases
    }
    papers = {name: row[2:] for name, row in published.TABLE_2.items()}
    return experiment.result(
        EXPERIMENTS[1],
        [table(experiment, found, COLUMNS), gains(experiment, found, COLUMNS, papers)],
        notes=[
            *notes(experiment, found),
            f"{ON_MODULE}: {experiment.setting.module} on DENT as if it were an ordinary network; "
            "misclassified images leave the batch",
        ],
        findings=[finding(base, one) for base, one in found.items()],
    )


def finding(base: str, found: DENTResult) -> str:
    """Compare DENT with its base network, and AutoAttack with the strongest attack.

    Args:
        base: name of the base network.
        found: our result.

    Returns:
        One sentence.
    """
    episodes = found.episodes
    lowest = min(COLUMNS, key=lambda name: float(correct_rate(episodes[name]).mean()))
    gain = format_difference(episodes[lowest], found.base.auto)
    on_module, auto = (
        format_difference(episodes[name], episodes[lowest]) for name in (ON_MODULE, "AA")
    )
    return (
        f"{base}: {lowest} is the strongest attack; DENT under it minus the static network under "
        f"AA is {gain}; compared with it, {ON_MODULE} overestimates the accuracy of DENT by "
        f"{on_module} and AA by {auto}."
    )
