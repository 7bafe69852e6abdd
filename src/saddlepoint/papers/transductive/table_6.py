"""Table 6: RMC on several sequences, each drawn, attacked and defended with coins of its own."""

from __future__ import annotations

import torch

from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import Lab, accuracy, apart, right
from saddlepoint.papers.transductive.rmc import BASES, GREEDY, Masking, Sequenced, units

COLUMNS = ("static, clean", "RMC, clean", "static, AA", *GREEDY)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    labs = [Masking(lab, kind) for kind in lab.setting.rmc]
    found = {
        (one.kind.data, base): [one.played(base, seed, everything=False) for seed in lab.seeds]
        for one in labs
        for base in BASES
    }
    n = lab.setting.rmc[0].images
    streams = lab.setting.repeats
    rows = tuple(row(key, played) for key, played in found.items())
    table = Table(
        "Accuracy and robustness, %",
        ("data", "base"),
        COLUMNS,
        rows,
        n * streams,
        units=units(streams, n),
    )
    return lab.result(
        EXPERIMENTS[5],
        [table],
        notes=[note for one in labs for note in one.notes()],
        findings=[finding(" ".join(key), played) for key, played in found.items()],
        repeats=streams,
    )


def row(key: tuple[str, str], found: list[Sequenced]) -> Row:
    ours = [
        [one.base.clean for one in found],
        [one.episodes["clean"] for one in found],
        [one.base.auto for one in found],
        *([one.episodes[name] for one in found] for name in GREEDY),
    ]
    papers = published.TABLE_6.get(key, (None,) * len(COLUMNS))
    return Row(
        key, tuple(accuracy(episodes, paper) for episodes, paper in zip(ours, papers, strict=True))
    )


def finding(title: str, found: list[Sequenced]) -> str:
    """What RMC adds to its base, over all sequences; the stronger of the two attacks is the one that is stronger on all of them."""
    totals = {name: torch.cat([right(one.episodes[name]) for one in found]) for name in GREEDY}
    lowest = min(GREEDY, key=lambda name: float(totals[name].mean()))
    static = torch.cat([right(one.base.auto) for one in found])
    verdict = "against the paper" if totals[lowest].mean() > static.mean() else "as in the paper"
    return f"{title}: under {lowest} RMC is {apart(totals[lowest], static)} from its static base under AA, {verdict}."
