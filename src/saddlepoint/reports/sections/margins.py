"""A histogram of the margins at the worst points."""

from __future__ import annotations

from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import muted
from saddlepoint.reports.figures import histogram
from saddlepoint.reports.markup import tag


def margins(context: ReportContext) -> Section:
    """Show margins: correctly classified points on the left, misclassified ones on the right."""
    values = context.audit.examples.margin.detach().cpu().double()
    if not values.isfinite().all():
        text = "Some outputs are not finite: margins cannot be drawn."
        return Section("Margins", (muted(text),), folded=True)
    figure = histogram(
        values.tolist(),
        title="Margins at the worst points",
        below="classified correctly",
        above="misclassified",
    )
    explanation = (
        "The margin is the highest output of a wrong class minus the output of the true class, at "
        "the point kept for each image. That is the worst point if an attack succeeded, and the "
        "point closest to the decision boundary otherwise."
    )
    body = (muted(explanation), tag("div", figure, class_="card"))
    return Section("Margins", body, folded=True)
