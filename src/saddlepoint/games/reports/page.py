"""The report of an exit game: one HTML page that needs no network."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.games.reports.sections import SECTIONS
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.phrases import count, percent
from saddlepoint.reports.document import document, save_page
from saddlepoint.reports.html import REPORT, contents, footer, section_element
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.runs.manifest import refresh
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.unfinished import check_finished


def load_game(folder: Path) -> GameRecord:
    """Load the game of a run folder.

    Raises:
        ValueError: The game in the folder belongs to an earlier run than run.json, or is damaged.
        UnfinishedError: The run in the folder is not finished.
        FileNotFoundError: The folder contains no game.
    """
    if (folder / "run.json").is_file() and not (folder / "game.json").is_file():
        check_finished(folder)
    record = GameRecord.load(folder)
    if record.run != identity(Store(folder).run()):
        raise ValueError(
            f"{folder} contains a game of {record.target}, but its run.json describes another "
            "game that has not finished. Repeat the command of that run to finish it, or copy "
            "game.json and game.safetensors into another folder."
        )
    return record


def write_report(record: GameRecord, path: Path) -> Path:
    """Write the report of a game to the HTML file `path` and return `path`."""
    save_page(path, page(record))
    if path.name == REPORT:
        refresh(path.parent, REPORT)
    return path


def page(record: GameRecord) -> str:
    """Return the report as an HTML document."""
    sections = [section for write in SECTIONS if (section := write(record)) is not None]
    body = tag(
        "main",
        tag("p", "saddlepoint game", class_="brand"),
        tag("h1", record.target),
        tag("p", f"{record.threat}; {count(record.exits, 'exit')}", class_="muted"),
        _value(record),
        contents(sections),
        *(section_element(section) for section in sections),
        footer(record.versions.get("saddlepoint", "")),
    )
    return document(f"{record.target}: exit game", body)


def _value(record: GameRecord) -> Markup:
    """Return the box with the value of the game and the summary."""
    summary = record.summary()
    serious = any(symptom.level == "serious" for symptom in record.symptoms)
    return tag(
        "div",
        tag("span", f"Value of the game: {percent(record.value.value)}", class_="label"),
        tag("p", summary[:1].upper() + summary[1:]),
        class_=f"verdict {'serious' if serious else 'note'}",
    )
