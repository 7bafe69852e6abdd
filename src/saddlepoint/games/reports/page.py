"""A game as one HTML page that needs no network."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.games.reports.sections import SECTIONS
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.reports.document import document, put
from saddlepoint.reports.html import contents, section
from saddlepoint.reports.markup import tag
from saddlepoint.runs.store import Store, identity


def kept(folder: Path) -> GameRecord:
    """The game of a run. What an earlier request left in the folder is refused: it is not what run.json asks for."""
    record = GameRecord.load(folder)
    if record.run != identity(Store(folder).run()):
        raise ValueError(
            f"{folder} holds a game of {record.target}, but its run.json asks for another one that has not finished. Give the "
            "command of that run again, or copy game.json and game.safetensors into a folder of their own."
        )
    return record


def write(record: GameRecord, path: Path) -> Path:
    """Write the page to the file `path` and return it."""
    return put(path, page(record))


def page(record: GameRecord) -> str:
    """The whole document."""
    parts = [part for make in SECTIONS if (part := make(record)) is not None]
    told = record.summary()
    body = tag(
        "main",
        tag("p", "saddlepoint game", class_="brand"),
        tag("h1", record.target),
        tag("p", f"{record.threat}; {record.exits} exits", class_="quiet"),
        tag(
            "div",
            tag("span", f"Value of the game: {100 * record.value.value:.1f} %", class_="label"),
            tag("p", told[:1].upper() + told[1:]),
            class_=f"verdict {'serious' if any(s.level == 'serious' for s in record.symptoms) else 'note'}",
        ),
        contents(parts),
        *(section(part) for part in parts),
        tag(
            "footer",
            tag(
                "p",
                f"Written by saddlepoint {record.versions.get('saddlepoint', '')}.",
                class_="quiet",
            ),
        ),
    )
    return document(f"{record.target}: game on exits", body)
