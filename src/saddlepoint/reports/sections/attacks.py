"""Robust accuracy by attack."""

from __future__ import annotations

from collections.abc import Iterator

from saddlepoint.audits.result import Audit, Row
from saddlepoint.audits.statistics import wilson
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import (
    collapsible,
    legend,
    muted,
    percent,
    percent_range,
    table,
)
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, tag

_HEAD = (
    "attack",
    "accuracy under this attack",
    "95 % interval",
    "worst case so far",
    "95 % interval",
    "broken by this attack (points)",
    "images attacked",
)
_EXPLANATION = (
    "Each bar is the worst case over that attack and all attacks above it. The last bar "
    "re-evaluates the worst point of each image."
)
_INTERVALS = (
    "Intervals are Wilson score intervals: they cover which images were drawn, not the strength of "
    "the attacks."
)


def attacks(context: ReportContext) -> Section:
    """Show the worst case after each attack in a figure."""
    audit = context.audit
    key = legend(
        primary="robust accuracy so far",
        secondary="broken by this attack",
        marker="robust accuracy under this attack alone",
        whisker="95 % interval",
    )
    chart = bars(list(_bars(audit)), title="Robust accuracy after each attack")
    return Section(
        "Robust accuracy by attack",
        (tag("div", key, chart, class_="card"), muted(_EXPLANATION)),
    )


def attack_table(context: ReportContext) -> Section:
    """Show every attack with its numbers and the reason why it was run."""
    audit = context.audit
    lines = [_line(row, audit.n) for row in audit.rows]
    body = (table(_HEAD, lines), muted(_INTERVALS), *_reasons(audit))
    return Section("All attacks", body, folded=True)


def _bars(audit: Audit) -> Iterator[Bar]:
    yield Bar("clean", audit.clean_accuracy, 0.0, percent(audit.clean_accuracy))
    for row in audit.rows:
        yield Bar(
            row.name,
            row.running,
            max(row.gain, 0.0),
            percent(row.running),
            marker=row.robust_accuracy,
            interval=wilson(row.running, audit.n)[:2],
        )
    yield Bar(
        "re-evaluated",
        audit.robust_accuracy,
        0.0,
        percent(audit.robust_accuracy),
        interval=audit.interval[:2],
    )


def _line(row: Row, n: int) -> tuple[str, ...]:
    return (
        row.name,
        percent(row.robust_accuracy),
        percent_range(*wilson(row.robust_accuracy, n)[:2]),
        percent(row.running),
        percent_range(*wilson(row.running, n)[:2]),
        f"{100 * row.gain:.1f}",
        str(row.attacked),
    )


def _reasons(audit: Audit) -> list[Markup]:
    lines = [(row.name, row.reason) for row in audit.rows if row.reason]
    if not lines:
        return []
    return [
        collapsible("Why each attack was run", table(("attack", "reason"), lines, class_="words"))
    ]
