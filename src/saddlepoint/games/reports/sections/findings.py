"""Warnings, the value of the game and the accuracy of NEED."""

from __future__ import annotations

from saddlepoint.defenses import subset_name
from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.phrases import signed_points
from saddlepoint.reports.context import Section
from saddlepoint.reports.document import number_cards, percent, percent_range
from saddlepoint.reports.sections.findings import symptom_list


def warnings(record: GameRecord) -> Section:
    """List the warnings, serious ones first."""
    none = "No warnings. This does not rule out that another attack is stronger."
    return Section("Warnings", symptom_list(record.symptoms, none))


def accuracies(record: GameRecord) -> Section:
    """Show the value of the game, the gain of NEED, and its accuracy on held-out images."""
    need = record.strategy("NEED")
    gain = record.value.value - record.pure_value
    cards = (
        (
            "value of the restricted game",
            percent(record.value.value),
            f"{_interval(record.value)}, on the images of the game",
        ),
        (
            "gain over the best pure strategy",
            signed_points(gain),
            f"over {subset_name(record.pure)}, on the same images",
        ),
        (
            "NEED under AIMER",
            percent(need.aimer.value),
            f"{_interval(need.aimer)}, on held-out images",
        ),
        (
            "NEED, worst attack per image",
            percent(need.per_image.value),
            f"{_interval(need.per_image)}, on held-out images",
        ),
    )
    return Section("Game value and accuracy", (number_cards(cards),))


def _interval(estimate: Estimate) -> str:
    return percent_range(estimate.low, estimate.high)
