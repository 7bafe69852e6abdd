"""Table 1: RMC on one stream, under transferred points and under attacks that simulate RMC."""

from __future__ import annotations

from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import (
    MAX_LOSS_POINTS,
    TransductiveExperiment,
    accuracy,
    format_difference,
)
from saddlepoint.papers.transductive.rmc import BASES, GREEDY, RMCExperiment, RMCResult, units

COLUMNS = (
    "static, clean",
    "RMC, clean",
    "static, AA",
    "AA",
    MAX_LOSS_POINTS,
    "PGD",
    "FPA",
    *GREEDY,
)


def run(request: Request) -> Result:
    """Reproduce Table 1."""
    experiment = TransductiveExperiment.open(request)
    experiments = [RMCExperiment(experiment, setting) for setting in experiment.setting.rmc]
    found = {
        (one.setting.data, base): one.evaluate(base, request.seed, all_attacks=True)
        for one in experiments
        for base in BASES
    }
    n = experiment.setting.rmc[0].images
    rows = tuple(row(key, one) for key, one in found.items())
    table = Table(
        "Accuracy and robustness, %", ("data", "base"), COLUMNS, rows, n, units=units(1, n)
    )
    return experiment.result(
        EXPERIMENTS[0],
        [table],
        notes=[note for one in experiments for note in one.notes()],
        findings=[
            finding for key, one in found.items() for finding in findings(" ".join(key), one)
        ],
    )


def row(key: tuple[str, str], found: RMCResult) -> Row:
    """Table row of one base network.

    Args:
        key: names of the data and of the base network, a key of `published.TABLE_1` if the paper
            has this row.
        found: our result.

    Returns:
        One cell per column of `COLUMNS`, with the paper's number where it has one.
    """
    episodes = found.episodes
    known = published.TABLE_1.get(key)
    ours = [
        found.base.clean,
        episodes["clean"],
        found.base.auto,
        *(episodes[name] for name in COLUMNS[3:]),
    ]
    papers = [None] * len(COLUMNS) if known is None else [*known[:4], None, *known[4:]]
    return Row(
        key, tuple(accuracy([episode], paper) for episode, paper in zip(ours, papers, strict=True))
    )


def findings(title: str, found: RMCResult) -> list[str]:
    """Compare the attacks with the strongest one, and RMC with its base network.

    Args:
        title: names of the data and of the base network.
        found: our result.

    Returns:
        Two sentences: by how much transferred points overestimate RMC, and the difference between
        RMC and its base network under the strongest attack on each.
    """
    episodes = found.episodes
    lowest = min(("FPA", *GREEDY), key=lambda name: float(correct_rate(episodes[name]).mean()))
    gains = correct_rate(episodes[lowest]).mean() > correct_rate(found.base.auto).mean()
    verdict = "RMC is more robust than its base" if gains else "RMC adds no robustness to its base"
    auto, max_loss, pgd = (
        format_difference(episodes[name], episodes[lowest])
        for name in ("AA", MAX_LOSS_POINTS, "PGD")
    )
    return [
        f"{title}: {lowest} is the strongest attack; compared with it, AA overestimates the "
        f"accuracy of RMC by {auto}, {MAX_LOSS_POINTS} by {max_loss} and PGD by {pgd}.",
        f"{title}: RMC under {lowest} minus its static base under AA is "
        f"{format_difference(episodes[lowest], found.base.auto)}: {verdict}.",
    ]
