"""Table 1: RMC on one stream, under transferred points and under attacks that simulate RMC."""

from __future__ import annotations

from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import MOVED, Lab, accuracy, apart, right
from saddlepoint.papers.transductive.rmc import BASES, GREEDY, RMCExperiment, RMCResult, units

COLUMNS = ("static, clean", "RMC, clean", "static, AA", "AA", MOVED, "PGD", "FPA", *GREEDY)


def run(request: Request) -> Result:
    """Reproduce Table 1."""
    lab = Lab.open(request)
    experiments = [RMCExperiment(lab, kind) for kind in lab.setting.rmc]
    found = {
        (one.kind.data, base): one.evaluate(base, request.seed, all_attacks=True)
        for one in experiments
        for base in BASES
    }
    n = lab.setting.rmc[0].images
    rows = tuple(row(key, one) for key, one in found.items())
    table = Table(
        "Accuracy and robustness, %", ("data", "base"), COLUMNS, rows, n, units=units(1, n)
    )
    return lab.result(
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
        key: Names of the data and of the base network, a key of `published.TABLE_1` if the paper
            has this row.
        found: Our result.

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
        title: Names of the data and of the base network.
        found: Our result.

    Returns:
        Two sentences: by how much transferred points overestimate RMC, and the difference between
        RMC and its base network under the strongest attack on each.
    """
    episodes = found.episodes
    lowest = min(("FPA", *GREEDY), key=lambda name: float(right(episodes[name]).mean()))
    gains = right(episodes[lowest]).mean() > right(found.base.auto).mean()
    verdict = (
        "RMC is more robust than its base, contrary to the paper"
        if gains
        else "RMC adds no robustness to its base, as in the paper"
    )
    return [
        f"{title}: {lowest} is the strongest attack; compared with it, AA overestimates the "
        f"accuracy of RMC by {apart(episodes['AA'], episodes[lowest])}, "
        f"{MOVED} by {apart(episodes[MOVED], episodes[lowest])} and PGD by "
        f"{apart(episodes['PGD'], episodes[lowest])}.",
        f"{title}: RMC under {lowest} minus its static base under AA is "
        f"{apart(episodes[lowest], found.base.auto)}: {verdict}.",
    ]
