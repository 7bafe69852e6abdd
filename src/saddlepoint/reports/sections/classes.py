"""Which classes fall, and to what."""

from __future__ import annotations

from collections import Counter

from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import percent, quiet
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.gallery import named
from saddlepoint.reports.markup import tag

_SHOWN = 20


def classes(subject: Subject) -> Part:
    """Robust accuracy by true class, the weakest first."""
    audit = subject.audit
    y = audit.y.cpu()
    answered = audit.answered.cpu()
    correct = audit.correct.cpu().double()
    rows = []
    for label in sorted(set(y.tolist())):
        here = y == label
        kept = float(correct[here].mean())
        wrong = Counter(answered[here & (answered != y) & (correct < 1)].tolist()).most_common(
            1
        )  # a refusal is not wrong
        mistaken = f" → {named(audit, int(wrong[0][0]))}" if wrong else ""
        rows.append(
            (
                kept,
                Bar(
                    f"{named(audit, label)}{mistaken}",
                    kept,
                    0.0,
                    f"{percent(kept)} of {int(here.sum())}",
                ),
            )
        )
    weakest = [bar for _, bar in sorted(rows, key=lambda row: row[0])]
    hidden = len(weakest) - _SHOWN
    more = f" {hidden} stronger classes are left out." if hidden > 0 else ""
    remark = f"Robust accuracy by true class, weakest first; the arrow leads to the most frequent wrong answer.{more}"
    figure = bars(weakest[:_SHOWN], title="Robust accuracy by true class")
    return Part("Which classes fall", (quiet(remark), tag("div", figure, class_="card")))
