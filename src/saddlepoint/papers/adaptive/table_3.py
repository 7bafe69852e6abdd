"""Table 3: the hedge defense on three robust nets."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.evaluation import Adversary, Episode, FixedPoints, Threat
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import hedged, on_hedge
from saddlepoint.papers.adaptive.experiment import Lab, Subject, apart, right
from saddlepoint.papers.adaptive.nets import METHODS
from saddlepoint.papers.adaptive.table_2 import gained
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = (
    "static",
    "from the static net",
    "from a shorter hedge",
    "worst of both",
    "less static",
    "clean",
)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    rows = list[Row]()
    subjects = list[Subject]()
    for base, paper in zip(METHODS, published.TABLE_3, strict=True):
        subject = lab.subject("HedgeDefense", base)
        subjects.append(subject)
        rows.append(_row(lab, subject, paper))
    return lab.result(
        "table-3",
        [
            Table(
                "Robust accuracy, %",
                ("static net", "in place of"),
                COLUMNS,
                tuple(rows),
                len(subjects[0].test.x),
                digits=1,
            )
        ],
        subjects=subjects,
        notes=[
            "static: under the same targeted APGD that its points are transferred from",
            f"points are found once and answered {lab.setting.draws} times: mean and standard deviation over these answers",
            "worst of both: which of the two points an image gets is chosen by answers that do not count",
        ],
        findings=[
            f"On {row.labels[0]}: {gained('the hedge defense', row.cells[4])}." for row in rows
        ],
        repeats=lab.setting.draws,
    )


def _row(lab: Lab, subject: Subject, paper: str) -> Row:
    spend = lab.setting.spend
    papers = published.TABLE_3[paper]
    blind, adaptive = hedged(subject.defense, spend)
    sent: list[Adversary] = [blind, adaptive, on_hedge(subject.defense, spend), FixedPoints()]
    repeated = [_answered(lab, subject, one) for one in lab.play(subject, sent)]
    (bare,) = lab.play_static(subject, [blind.adversary])
    cells = [Cell(tuple(100 * float(one.mean()) for one in answers)) for answers in repeated]
    shown = [
        Cell(cell.values, figure) for cell, figure in zip(cells, (*papers[1:], None), strict=True)
    ]
    gap = apart(torch.stack(repeated[2]).mean(0), right(bare), papers[3] - papers[0])
    return Row((subject.base, paper), (accuracy(right(bare), papers[0]), *shown[:3], gap, shown[3]))


def _answered(lab: Lab, subject: Subject, found: Episode) -> list[Tensor]:
    """[N] for each of several answers to the same points."""
    again = FixedPoints(f"{found.adversary}, again", found.points)
    threat = Threat(subject.space)
    return [
        right(lab.play(subject, [again], threat=threat, seed=1 + k)[0])
        for k in range(lab.setting.draws)
    ]
