"""How far from the boundary the worst points lie."""

from __future__ import annotations

from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import quiet
from saddlepoint.reports.figures import histogram
from saddlepoint.reports.markup import tag


def margins(subject: Subject) -> Part:
    """A histogram of margins, right answers left and wrong ones right."""
    title = "How far from the boundary"
    values = subject.audit.examples.margin.detach().cpu().double()
    if not values.isfinite().all():
        return Part(
            title, (quiet("Some answers are not finite numbers, so margins cannot be drawn."),)
        )
    figure = histogram(
        values.tolist(),
        title="Margins at the worst points",
        below="answered rightly",
        above="answered wrongly",
    )
    remark = (
        "The strongest wrong class against the true one, in units of the answers, at the point kept for each image: the worst one "
        "where an attack did harm, the one that came nearest to the boundary where none did."
    )
    return Part(title, (quiet(remark), tag("div", figure, class_="card")))
