"""A game for other programs: the payoff matrix as CSV, the record as JSON."""

from __future__ import annotations

import json

from saddlepoint.games.runs.record import GameRecord
from saddlepoint.reports.export import as_csv


def payoff_csv(record: GameRecord) -> str:
    """A line per row of the game: its attack, how often the attacker plays it at equilibrium, and the accuracy of every column."""
    head = ["attack", "probability", *record.columns]
    rows = zip(
        (row.name for row in record.rows), record.attacker, record.payoff.tolist(), strict=True
    )
    return as_csv(head, ([name, p, *payoff] for name, p, payoff in rows))


def as_json(record: GameRecord) -> str:
    """The record; the outcomes of single images are in game.safetensors."""
    return json.dumps(record.record(), indent=1, allow_nan=False) + "\n"
