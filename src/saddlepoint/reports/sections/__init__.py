"""The sections of the report of an audit, in order.

A section is a function from the `ReportContext` to a `Section`, or to None if it does not apply.
"""

from saddlepoint.reports.context import SectionWriter
from saddlepoint.reports.sections.attacks import attacks
from saddlepoint.reports.sections.classes import classes
from saddlepoint.reports.sections.configuration import configuration, reproduction, verification
from saddlepoint.reports.sections.cost import cost
from saddlepoint.reports.sections.examples import examples
from saddlepoint.reports.sections.findings import (
    accuracies,
    checklist,
    published,
    recognized,
    warnings,
)
from saddlepoint.reports.sections.loss_curves import loss_curves
from saddlepoint.reports.sections.margins import margins
from saddlepoint.reports.sections.radius import radius
from saddlepoint.reports.sections.rejections import rejections
from saddlepoint.reports.sections.winners import winners

SECTIONS: tuple[SectionWriter, ...] = (
    warnings,
    checklist,
    accuracies,
    radius,
    attacks,
    cost,
    recognized,
    published,
    loss_curves,
    rejections,
    margins,
    classes,
    examples,
    winners,
    configuration,
    reproduction,
    verification,
)

__all__ = ["SECTIONS"]
