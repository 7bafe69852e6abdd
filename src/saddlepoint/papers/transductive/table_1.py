"""Table 1: RMC on one sequence, under points from its base network and under attacks that know how it learns."""

from __future__ import annotations

from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import MOVED, Lab, accuracy, apart, right
from saddlepoint.papers.transductive.rmc import BASES, GREEDY, Masking, Sequenced, units

COLUMNS = ("static, clean", "RMC, clean", "static, AA", "AA", MOVED, "PGD", "FPA", *GREEDY)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    labs = [Masking(lab, kind) for kind in lab.setting.rmc]
    found = {
        (one.kind.data, base): one.played(base, request.seed, everything=True)
        for one in labs
        for base in BASES
    }
    n = lab.setting.rmc[0].images
    rows = tuple(row(key, played) for key, played in found.items())
    table = Table(
        "Accuracy and robustness, %", ("data", "base"), COLUMNS, rows, n, units=units(1, n)
    )
    return lab.result(
        EXPERIMENTS[0],
        [table],
        notes=[note for one in labs for note in one.notes()],
        findings=[
            told for key, played in found.items() for told in findings(" ".join(key), played)
        ],
    )


def row(key: tuple[str, str], found: Sequenced) -> Row:
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


def findings(title: str, found: Sequenced) -> list[str]:
    """By how much points from elsewhere overrate RMC, and what it adds to its base under the strongest attack."""
    episodes = found.episodes
    lowest = min(("FPA", *GREEDY), key=lambda name: float(right(episodes[name]).mean()))
    adds = right(episodes[lowest]).mean() > right(found.base.auto).mean()
    verdict = (
        "against the paper, RMC is left with more than its base"
        if adds
        else "RMC adds nothing to its base, as in the paper"
    )
    return [
        f"{title}: {lowest} is the strongest attack; over it AA overrates RMC by {apart(episodes['AA'], episodes[lowest])}, "
        f"{MOVED} by {apart(episodes[MOVED], episodes[lowest])} and PGD by {apart(episodes['PGD'], episodes[lowest])}.",
        f"{title}: under {lowest} RMC is {apart(episodes[lowest], found.base.auto)} from its static base under AA: {verdict}.",
    ]
