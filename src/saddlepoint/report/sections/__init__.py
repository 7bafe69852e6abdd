"""The sections of a report, in order. One is a function from a subject to a part, or to nothing; a new one is a line here."""

from saddlepoint.report.sections.attacks import attacks
from saddlepoint.report.sections.classes import classes
from saddlepoint.report.sections.climbs import climbs
from saddlepoint.report.sections.cost import cost
from saddlepoint.report.sections.findings import checklist, numbers, others, symptoms
from saddlepoint.report.sections.ledger import ledger
from saddlepoint.report.sections.margins import margins
from saddlepoint.report.sections.pictures import pictures
from saddlepoint.report.sections.radius import radius
from saddlepoint.report.sections.record import run_again, verify, what_was_run
from saddlepoint.report.sections.refusals import refusals
from saddlepoint.report.subject import Section

SECTIONS: tuple[Section, ...] = (
    symptoms,
    checklist,
    numbers,
    others,
    attacks,
    climbs,
    refusals,
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
