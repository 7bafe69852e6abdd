"""The objective of each attack over its forward passes: had the attack converged?"""

from __future__ import annotations

from saddlepoint.audits.result import Row
from saddlepoint.phrases import count, relative
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import muted, percent, table
from saddlepoint.reports.loss_curve_figure import LossCurveRow, loss_curve_figure
from saddlepoint.reports.markup import tag

_HEAD = (
    "attack",
    "images",
    "passes",
    "first value",
    "last value",
    "final slope",
    "misclassified during the attack",
)
_DEFINITION = (
    "The x axis is the number of forward passes. The left curve is the mean, over the images that "
    "the attack queried, of the highest value that its objective has reached so far at a point "
    "within the threat model. An image keeps its value after the attack has stopped querying it. "
    "The curve begins where every image has a value. If predictions depend on the batch, each "
    "image counts with the best mean of its batch. Each attack has its own objective with its own "
    "scale, so values of different attacks cannot be compared."
)
_INTERPRETATION = (
    "A curve that is flat at its end has converged: more steps would change little. A curve that "
    "is still rising has not converged. A minimum-norm attack does not maximize its objective: "
    "its last point may be its only one within the threat model. The right curve counts images "
    "that were misclassified at any query during the attack, before the re-evaluation."
)
_SLOPE = (
    "Final slope: the increase per pass over the last quarter of the passes, relative to the mean "
    "increase over all passes. 100 % is a straight line. For a curve that approaches a limit "
    "exponentially, 50 % means that a fifth of the total increase is still to come."
)


def loss_curves(context: ReportContext) -> Section | None:
    """Show the loss curve of each attack, in a figure and in a table.

    None for audits that recorded no loss curves.
    """
    rows = [row for row in context.audit.rows if row.loss_curve.passes]
    if not rows:
        return None
    figure = loss_curve_figure(
        [_figure_row(row) for row in rows],
        title="Objective and misclassified images by forward passes",
        left="mean of the objective",
        right="misclassified during the attack",
    )
    missing = [row.name for row in context.audit.rows if not row.loss_curve.passes]
    unrecorded = [muted(f"No loss curve was recorded for {', '.join(missing)}.")] if missing else []
    return Section(
        "Loss curves",
        (
            tag("div", figure, class_="card"),
            muted(_DEFINITION),
            muted(_INTERPRETATION),
            *unrecorded,
            table(_HEAD, [_line(row) for row in rows]),
            muted(_SLOPE),
        ),
        folded=True,
    )


def _figure_row(row: Row) -> LossCurveRow:
    curve = row.loss_curve
    values = curve.known
    change = f"value {values[0][1]:.3g} to {values[-1][1]:.3g}" if values else "no values"
    text = (
        f"{change} in {count(curve.passes[-1], 'pass')}, {percent(curve.misclassified[-1])} "
        "misclassified"
    )
    return LossCurveRow(
        row.name, values, tuple(zip(curve.passes, curve.misclassified, strict=True)), text
    )


def _line(row: Row) -> tuple[str, ...]:
    curve = row.loss_curve
    values = curve.known
    ends = (f"{values[0][1]:.4g}", f"{values[-1][1]:.4g}") if values else ("–", "–")
    return (
        row.name,
        f"{curve.images[-1]:,}",
        f"{curve.passes[-1]:,}",
        *ends,
        "–" if curve.final_slope is None else relative(curve.final_slope),
        percent(curve.misclassified[-1]),
    )
