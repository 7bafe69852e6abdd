"""Robust accuracy by attack, and the worst case as it came down."""

from __future__ import annotations

from saddlepoint.audits.statistics import wilson
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import between, folded, key, percent, quiet, table
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import tag


def attacks(subject: Subject) -> Part:
    """A bar per attack, from top to bottom the worst case so far; then the same in numbers."""
    audit = subject.audit
    steps = [Bar("clean", audit.clean_accuracy, 0.0, percent(audit.clean_accuracy))]
    lines = []
    for row in audit.rows:
        alone = wilson(row.robust_accuracy, audit.n)
        running = wilson(row.running, audit.n)
        words = percent(row.running)
        steps.append(
            Bar(
                row.name,
                row.running,
                max(row.gain, 0.0),
                words,
                alone=row.robust_accuracy,
                interval=running[:2],
            )
        )
        spans = between(*alone[:2]), between(*running[:2])
        lines.append(
            (
                row.name,
                percent(row.robust_accuracy),
                spans[0],
                words,
                spans[1],
                f"{100 * row.gain:.1f}",
                str(row.attacked),
            )
        )
    steps.append(
        Bar(
            "judged afresh",
            audit.robust_accuracy,
            0.0,
            percent(audit.robust_accuracy),
            interval=audit.interval[:2],
        )
    )
    legend = key(
        kept="accuracy left",
        lost="taken by this attack",
        alone="left by this attack alone",
        whisker="95 % interval",
    )
    figure = tag(
        "div", legend, bars(steps, title="Accuracy that is left after each attack"), class_="card"
    )
    head = (
        "attack",
        "accuracy against it",
        "95 % interval",
        "worst case so far",
        "95 % interval",
        "taken",
        "images attacked",
    )
    remark = "Worst case over the attacks so far, from top to bottom. Intervals are Wilson's: they cover which images were drawn."
    told = [(row.name, row.reason) for row in audit.rows if row.reason]
    why = [folded("Why each attack was sent", table(("attack", "why"), told))] if told else []
    return Part("What each attack took", (figure, quiet(remark), table(head, lines), *why))
