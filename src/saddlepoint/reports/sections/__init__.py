"""The sections of a report, in order. One is a function from a subject to a part, or to nothing; a new one is a line here."""

from saddlepoint.reports.context import Section
from saddlepoint.reports.sections.attacks import attacks
from saddlepoint.reports.sections.classes import classes
from saddlepoint.reports.sections.cost import cost
from saddlepoint.reports.sections.findings import checklist, numbers, others, symptoms
from saddlepoint.reports.sections.ledger import ledger
from saddlepoint.reports.sections.loss_curves import loss_curves
from saddlepoint.reports.sections.margins import margins
from saddlepoint.reports.sections.pictures import pictures
from saddlepoint.reports.sections.radius import radius
from saddlepoint.reports.sections.record import run_again, verify, what_was_run
from saddlepoint.reports.sections.rejections import rejections

SECTIONS: tuple[Section, ...] = (
    symptoms,
    checklist,
    numbers,
    others,
    attacks,
    loss_curves,
    rejections,
    radius,
    margins,
    classes,
    pictures,
    ledger,
    cost,
    what_was_run,
    run_again,
    verify,
)

__all__ = ["SECTIONS"]
