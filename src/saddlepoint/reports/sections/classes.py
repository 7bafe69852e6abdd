"""Robust accuracy by true class."""

from __future__ import annotations

from collections import Counter

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import agree, count
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import muted, percent
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.gallery import class_name
from saddlepoint.reports.markup import tag

_SHOWN = 20  # classes


def classes(context: ReportContext) -> Section:
    """Show the robust accuracy of each true class, lowest first, at most 20 classes."""
    audit = context.audit
    rows = [_bar(audit, label) for label in sorted(set(audit.y.tolist()))]
    lowest_first = sorted(rows, key=lambda bar: bar.value)
    hidden = len(rows) - _SHOWN
    more = (
        f" {count(hidden, 'class')} with higher robust accuracy {agree(hidden, 'is', 'are')} not "
        "shown."
        if hidden > 0
        else ""
    )
    explanation = (
        "Robust accuracy by true class, lowest first. The arrow shows the most frequent wrong "
        f"prediction.{more}"
    )
    chart = bars(lowest_first[:_SHOWN], title="Robust accuracy by true class")
    body = (muted(explanation), tag("div", chart, class_="card"))
    return Section("Robust accuracy by class", body, folded=True)


def _bar(audit: Audit, label: int) -> Bar:
    y = audit.y.cpu()
    predicted = audit.answered.cpu()
    correct = audit.correct.cpu().double()
    members = y == label
    accuracy = float(correct[members].mean())
    # A rejected image is predicted differently but counts as correct.
    wrong = Counter(predicted[members & (predicted != y) & (correct < 1)].tolist())
    arrow = "".join(f" → {class_name(audit, int(other))}" for other, _ in wrong.most_common(1))
    text = f"{percent(accuracy)} of {int(members.sum())}"
    return Bar(f"{class_name(audit, label)}{arrow}", accuracy, 0.0, text)
