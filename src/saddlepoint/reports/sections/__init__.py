"""The sections of the report of an audit, in order.

A section is a function from the `ReportContext` to a `Section`, or to None if it does not apply.
"""

from saddlepoint.reports.context import SectionWriter
from saddlepoint.reports.sections.attacks import attack_table, attacks
from saddlepoint.reports.sections.classes import classes
from saddlepoint.reports.sections.configuration import configuration, reproduction, verification
from saddlepoint.reports.sections.cost import cost
from saddlepoint.reports.sections.examples import examples
from saddlepoint.reports.sections.findings import (
    accuracies,
    checklist,
    comparisons,
    published,
    recognized,
    warnings,
)
from saddlepoint.reports.sections.loss_curves import loss_curves
from saddlepoint.reports.sections.margins import margins
from saddlepoint.reports.sections.radius import radius
from saddlepoint.reports.sections.rejections import rejections
from saddlepoint.reports.sections.winners import winners

NUMBERS: tuple[SectionWriter, ...] = (accuracies,)
CHARTS: tuple[SectionWriter, ...] = (radius, attacks)  # beside each other on wide screens
COST: tuple[SectionWriter, ...] = (cost,)
SECTIONS: tuple[SectionWriter, ...] = (  # after the first screen
    warnings,
    checklist,
    comparisons,
    published,
    recognized,
    examples,
    attack_table,
    loss_curves,
    rejections,
    margins,
    classes,
    winners,
    configuration,
    reproduction,
    verification,
)

__all__ = ["CHARTS", "COST", "NUMBERS", "SECTIONS"]
