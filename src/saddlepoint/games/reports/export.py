"""Export an exit game: the payoff matrix as CSV, the record as JSON."""

from __future__ import annotations

import json

from saddlepoint.games.runs.record import GameRecord
from saddlepoint.reports.export import as_csv


def payoff_csv(record: GameRecord) -> str:
    """Return CSV with one line per row of the payoff matrix.

    The columns are the attack, its probability in the attacker's equilibrium strategy, the accuracy
    of every set of exits, and the hash of the game.
    """
    head = ["attack", "probability", *record.columns, "run"]
    rows = zip(
        (row.name for row in record.rows), record.attacker, record.payoff.tolist(), strict=True
    )
    return as_csv(head, ([name, p, *payoff, record.run] for name, p, payoff in rows))


def as_json(record: GameRecord) -> str:
    """Return the record as JSON; the outcomes of single images are in game.safetensors."""
    return json.dumps(record.record(), indent=1, allow_nan=False) + "\n"
