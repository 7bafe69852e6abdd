"""Table 2: SODEF under points of its static net, in two norms."""

from __future__ import annotations

from dataclasses import replace

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import CleanCopies, FixedPoints, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import auto, on_sodef, through_sodef
from saddlepoint.papers.adaptive.experiment import FLOW, Lab, Subject, apart, right
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = (
    "static, AutoAttack", "AutoAttack (clean copies), transferred", "APGD, transferred", "less static",
    "APGD through the ODE (ours)", "worst of all less static", "clean",
)  # fmt: skip
NOTES = (
    "APGD, transferred: points of maximal cross-entropy, margin and targeted DLR of the static net, of which the worst counts",
    "through the ODE: the same three attacks on the defense itself, by exact gradients of the solver's steps",
    FLOW,
)


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subject = lab.subject("SODEF")
    spaces = {"Linf": subject.space, "L2": lab.setting.euclidean}
    rows = {norm: _row(lab, subject, norm, space) for norm, space in spaces.items()}
    table = Table(
        "Robust accuracy, %",
        ("norm", "set"),
        COLUMNS,
        tuple(rows.values()),
        len(subject.test.x),
        digits=1,
    )
    return lab.result(
        "table-2",
        [table],
        subjects=[subject],
        notes=NOTES,
        findings=[told for norm in rows for told in _findings(norm, rows[norm])],
    )


def _row(lab: Lab, subject: Subject, norm: str, space: Ball) -> Row:
    spend = lab.setting.spend
    papers = published.TABLE_2[norm]
    (static,) = lab.play_static(subject, [auto(spend)], space=space)
    sent = [
        Transfer(CleanCopies(auto(spend)), subject.static),
        on_sodef(subject.defense, spend),
        through_sodef(spend),
        FixedPoints(),
    ]
    episodes = lab.play(subject, sent, threat=replace(subject.threat, space=space))
    copies, longest, through, clean = (right(one) for one in episodes)
    cells = [
        accuracy(one, paper)
        for one, paper in zip((right(static), copies, longest), papers, strict=True)
    ]
    gap = apart(longest, right(static), papers[2] - papers[0])
    least = apart(subject.worst(episodes), right(static))
    return Row((norm, str(space)), (*cells, gap, accuracy(through), least, accuracy(clean)))


def _findings(norm: str, row: Row) -> list[str]:
    static, copies, longest, gap, through, least, _ = row.cells
    assert static is not None
    assert copies is not None
    assert longest is not None
    assert through is not None
    verdict = "are kinder than" if copies.mean > longest.mean else "are no kinder than"
    stronger = "stronger than" if through.mean < longest.mean else "no stronger than"
    return [
        f"{norm}: clean copies {verdict} points of maximal loss, {copies.mean:.1f} to {longest.mean:.1f} %.",
        f"{norm}: under transferred points {gained('SODEF', gap)}.",
        f"{norm}: the exact gradient through the ODE is {stronger} these and leaves {through.mean:.1f} %; under all of it "
        f"{gained('SODEF', least)}.",
    ]


def gained(name: str, gap: Cell | None) -> str:
    """Is the defense above its static net, beyond the interval?"""
    assert gap is not None
    assert gap.interval is not None
    low, high = gap.interval
    verdict = (
        "more robust than" if low > 0 else "less robust than" if high < 0 else "not to be told from"
    )
    paper = f", the paper has {gap.paper:+.1f}" if gap.paper is not None else ""
    return f"{name} is {verdict} its static net ({gap.mean:+.1f} points, {low:+.1f} to {high:+.1f}{paper})"
