"""How the objective of each attack rose, and whether it had converged when the attack ended."""

from __future__ import annotations

from saddlepoint.audits.result import Row
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import percent, quiet, table
from saddlepoint.reports.markup import tag
from saddlepoint.reports.traces import Trace, traces

_TOLD = (
    "Read from left to right as an attack spends forward passes. An image counts with the highest value of the attack's own "
    "objective that any point within the threat had shown by then, and keeps it once it is left alone; the mean is over the images "
    "the attack asked about, from where each of them has a value. Images that answer together count with the best mean of their "
    "batch. Objectives have scales of their own, so values of two attacks do not compare."
)
_READ = (
    "A curve that is flat at its end has converged: more steps would bring little. One that is still steep has not. An attack that "
    "looks for the nearest mistake does not climb: its last point may be its only one within the threat. What was fooled on the "
    "way is what the attack saw, not the verdict."
)


def loss_curves(subject: Subject) -> Part | None:
    """A curve per attack of what it had reached, then the same in numbers; nothing for audits in which it was not written down."""
    known = [row for row in subject.audit.rows if row.loss_curve.passes]
    if not known:
        return None
    drawn = traces(
        [_trace(row) for row in known], title="What each attack had reached, by passes spent",
        left="mean value of its objective", right="images fooled on the way",
    )  # fmt: skip
    head = (
        "attack",
        "images",
        "passes",
        "first value",
        "last value",
        "steepness at the end",
        "fooled on the way",
    )
    missing = [row.name for row in subject.audit.rows if not row.loss_curve.passes]
    silent = [quiet(f"Nothing was written down for {', '.join(missing)}.")] if missing else []
    steep = (
        "Steepness at the end: the rise in the last quarter of the passes, per pass, in percent of the mean over all of them. "
        "100 % is a straight line; on the way to a limit, 50 % means that a fifth of the way is still ahead."
    )
    figure = tag("div", drawn, class_="card")
    lines = [_line(row) for row in known]
    return Part(
        "Loss traces",
        (figure, quiet(_TOLD), quiet(_READ), *silent, table(head, lines), quiet(steep)),
    )


def _trace(row: Row) -> Trace:
    loss_curve = row.loss_curve
    value = row.loss_curve.known
    climbed = f"value {value[0][1]:.3g} to {value[-1][1]:.3g}" if value else "no value"
    words = f"{climbed} in {loss_curve.passes[-1]} passes, {percent(loss_curve.fooled[-1])} fooled"
    return Trace(
        row.name, value, tuple(zip(loss_curve.passes, loss_curve.fooled, strict=True)), words
    )


def _line(row: Row) -> tuple[str, ...]:
    loss_curve = row.loss_curve
    value = row.loss_curve.known
    ends = (f"{value[0][1]:.4g}", f"{value[-1][1]:.4g}") if value else ("–", "–")
    steep = "–" if loss_curve.pace is None else f"{100 * loss_curve.pace:.0f} %"
    return (
        row.name,
        f"{loss_curve.images[-1]:,}",
        f"{loss_curve.passes[-1]:,}",
        *ends,
        steep,
        percent(loss_curve.fooled[-1]),
    )
