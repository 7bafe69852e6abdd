"""What is in a folder of runs, without loading any target."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saddlepoint.games.runs.record import JSON, read
from saddlepoint.games.runs.spec import GameSpec
from saddlepoint.games.runs.spec import write as write_game
from saddlepoint.runs.spec import RunSpec, write
from saddlepoint.runs.store import Store, StoreError, identity

_INSIDE = {"cells", "locks"}  # folders of a run in which no other run can be


@dataclass(frozen=True)
class Summary:
    """One run in a line."""

    folder: str
    target: str
    threat: str
    examples: int
    done: int  # cells of the present request
    total: int
    finished: bool  # all cells are there, and record and report are of this request
    verdict: str = ""  # these four are empty until the run has finished
    clean_accuracy: float | None = None
    robust_accuracy: float | None = None
    interval: tuple[float, float] | None = None
    at_work: int = 0  # cells that living processes on this machine are computing
    problem: str = ""  # why nothing else could be read
    kind: str = "audit"  # or "game": then the accuracies are NEED's, under an attacker who chooses per image


@dataclass(frozen=True)
class CellState:
    """One cell of a run."""

    key: str
    state: str  # done, missing or damaged
    adversary: str = ""
    rows: tuple[int, int] | None = None  # first and last image
    seconds: float | None = None
    bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Details:
    """All that a folder says about its run."""

    summary: Summary
    target_sha256: str
    spec: str  # TOML; empty for a model in memory
    cells: tuple[CellState, ...]
    foreign: int  # cells that the present request does not use
    events: tuple[dict[str, Any], ...]
    timing: dict[str, float] = field(default_factory=dict)  # seconds by adversary


def runs(folder: Path) -> list[Summary]:
    """Every run in the folder or below it."""
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}. Give one that holds runs.")
    return [summary(place) for place in _places(folder)]


def summary(folder: Path) -> Summary:
    """One run in a line; a folder that cannot be read says why."""
    store = Store(folder)
    try:
        run = store.run()
        total = len(run["cells"])
        done = sum(store.has(key) for key in run["cells"])
        about: dict[str, Any] = {
            "target": run["target"]["name"],
            "threat": threat(run),
            "examples": run["examples"],
        }
        about["kind"] = run.get("kind", "audit")
    except (StoreError, KeyError, TypeError) as error:
        return Summary(str(folder), "", "", 0, 0, 0, False, problem=str(error))
    at_work = sum(store.busy(key) for key in run["cells"] if not store.has(key))
    record = concluded(store, run) if done == total else None
    told = _conclusion(record, about["kind"]) if record else {"finished": False}
    return Summary(str(folder), **about, done=done, total=total, at_work=at_work, **told)


def _conclusion(record: dict[str, Any], kind: str) -> dict[str, Any]:
    """What came out, in the words that audits and games share."""
    if kind == "game":
        need = record["strategies"][0]
        robust = need["per_image"]
        clean = need["clean"]["value"]
        verdict = f"value {100 * record['value']['value']:.1f} %"
        return {
            "finished": True, "verdict": verdict, "clean_accuracy": clean, "robust_accuracy": robust["value"],
            "interval": (robust["low"], robust["high"]),
        }  # fmt: skip
    return {
        "finished": True, "verdict": record["verdict"], "clean_accuracy": record["clean_accuracy"],
        "robust_accuracy": record["robust_accuracy"], "interval": (record["interval"]["low"], record["interval"]["high"]),
    }  # fmt: skip


def concluded(store: Store, run: dict[str, Any]) -> dict[str, Any] | None:
    """The record of this very request. What an earlier request left in the folder is none: its number is another target's."""
    try:
        game = run.get("kind") == "game"
        record = (
            read(store.folder / JSON)
            if game
            else json.loads((store.folder / "audit.json").read_text())
        )
        return record if answers(record.get("run", ""), store, run) else None
    except (OSError, ValueError, AttributeError):
        return None


def answers(claimed: str, store: Store, run: dict[str, Any]) -> bool:
    """Is a record the answer to this request? It says so itself; of older ones, which do not, the ledger says who was last."""
    if claimed:
        return claimed == identity(run)
    last = [event for event in store.events() if event["event"] == "concluded"][-1:]
    return bool(last) and last[0].get("run", identity(run)) == identity(run)


def details(folder: Path) -> Details:
    """Specification, cells, events and timing of one run."""
    store = Store(folder)
    run = store.run()
    events = tuple(store.events())
    seconds = {
        event["key"]: float(event["seconds"]) for event in events if event["event"] == "cell"
    }
    cells = tuple(_cell(store, key, seconds.get(key)) for key in run["cells"])
    timing: dict[str, float] = {}
    for cell in cells:
        if cell.state == "done":
            timing[cell.adversary] = timing.get(cell.adversary, 0.0) + (cell.seconds or 0.0)
    return Details(
        summary=summary(folder),
        target_sha256=run["target"]["sha256"],
        spec=_specification(run),
        cells=tuple(
            sorted(
                cells,
                key=lambda cell: (cell.state == "done", cell.rows or (-1, -1), cell.adversary),
            )
        ),
        foreign=len(set(store.keys()) - set(run["cells"])),
        events=events,
        timing=timing,
    )


def _specification(run: dict[str, Any]) -> str:
    if not run["spec"]:
        return ""
    text = json.dumps(run["spec"])
    if run.get("kind") == "game":
        return write_game(GameSpec.model_validate_json(text))
    return write(RunSpec.model_validate_json(text))


def threat(run: dict[str, Any]) -> str:
    """`Linf 8/255`, from the specification as it was written, or from the record of it."""
    if run["spec"]:
        return f"{run['spec']['threat']['norm'].capitalize()} {run['spec']['threat']['eps']}"
    space = run["threat"]["space"]
    return (
        f"L{space['p']:g} {space['radius']:g}"
        if isinstance(space["p"], float)
        else f"L{space['p']} {space['radius']:g}"
    )


def _cell(store: Store, key: str, seconds: float | None) -> CellState:
    if not store.has(key):
        return CellState(key, "missing")
    try:
        record = store.record(key)
    except StoreError as error:
        return CellState(key, "damaged", problem=str(error))
    size = sum(path.stat().st_size for path in store.cells.glob(f"{key}.*"))
    first, last = record["rows"]
    return CellState(key, "done", record["adversary"], (first, last), seconds, size)


def _places(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        below[:] = sorted(set(below) - _INSIDE) if "run.json" in files else sorted(below)
        if "run.json" in files:
            yield Path(place)
