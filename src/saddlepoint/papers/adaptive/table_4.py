"""Table 4: AID-purifier on several data."""

from __future__ import annotations

from saddlepoint.evaluation import FixedPoints, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import auto, long, on_aid
from saddlepoint.papers.adaptive.experiment import Lab, Subject, apart, right
from saddlepoint.papers.adaptive.nets import ROBUST, further
from saddlepoint.papers.adaptive.table_2 import gained
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

COLUMNS = (
    "static, AutoAttack",
    "transferred",
    "direct",
    "direct less static",
    "clean",
    "static, clean",
)
_PAPERS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
}  # by the names of our data


def run(request: Request) -> Result:
    lab = Lab.open(request)
    subjects = [lab.subject("AIDPurifier", base) for base in (ROBUST, *further(request.scale))]
    rows = [_row(lab, subject) for subject in subjects]
    return lab.result(
        "table-4",
        [
            Table(
                "Robust accuracy, %",
                ("data", "set"),
                COLUMNS,
                tuple(rows),
                len(subjects[0].test.x),
                digits=1,
            )
        ],
        subjects=subjects,
        notes=[
            "transferred: points of maximal cross-entropy by APGD on the static net",
            "the discriminator is that of CIFAR-10 on all data; the released one for SVHN looks at other layers and is less deep",
            "CIFAR-100 is attacked at the scale `paper` alone",
        ],
        findings=[f"{row.labels[0]}: {gained('the purified net', row.cells[3])}." for row in rows],
    )


def _row(lab: Lab, subject: Subject) -> Row:
    spend = lab.setting.spend
    papers = published.TABLE_4.get(_PAPERS.get(subject.data, ""), (None, None, None))
    static, bare = (right(one) for one in lab.play_static(subject, [auto(spend), FixedPoints()]))
    sent = [Transfer(long(spend), subject.static), on_aid(subject.defense, spend), FixedPoints()]
    moved, direct, clean = (right(one) for one in lab.play(subject, sent))
    known = papers[2] - papers[0] if papers[0] is not None and papers[2] is not None else None
    cells = [
        accuracy(one, paper) for one, paper in zip((static, moved, direct), papers, strict=True)
    ]
    return Row(
        (subject.data, str(subject.space)),
        (*cells, apart(direct, static, known), accuracy(clean), accuracy(bare)),
    )
