"""The sections of the report of an exit game, in order.

A section is a function from the `GameRecord` to a `Section`, or to None if it does not apply.
"""

from collections.abc import Callable

from saddlepoint.games.reports.sections.configuration import configuration, reproduction
from saddlepoint.games.reports.sections.cost import cost
from saddlepoint.games.reports.sections.findings import accuracies, warnings
from saddlepoint.games.reports.sections.matrix import payoff
from saddlepoint.games.reports.sections.strategies import exits, strategies
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.reports.context import Section

SECTIONS: tuple[Callable[[GameRecord], Section | None], ...] = (
    warnings,
    accuracies,
    payoff,
    strategies,
    exits,
    cost,
    configuration,
    reproduction,
)

__all__ = ["SECTIONS"]
