"""Verification of a game with its report."""

from __future__ import annotations

from collections.abc import Iterator

from saddlepoint.audits.verdict import Check
from saddlepoint.games.reports.page import load_game, page
from saddlepoint.games.runs.verify import checks
from saddlepoint.reports.verify import with_report
from saddlepoint.runs.replay import Replay
from saddlepoint.runs.store import Store


def game_checks(store: Store, replay: Replay) -> Iterator[Check]:
    """All checks of a game, and of its report if there is one.

    Args:
        store: The folder of the game.
        replay: Which attack cells are computed again.
    """
    yield from with_report(checks(store, replay), store, lambda: page(load_game(store.folder)))
