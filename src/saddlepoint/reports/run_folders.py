"""Reads what a folder of runs contains, without loading any target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saddlepoint.audits.record_fields import read_record
from saddlepoint.audits.result import conclusion_of
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.phrases import percent
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.manifest import hash_state
from saddlepoint.runs.own_files import DIAGNOSTICS, OWN_FOLDERS
from saddlepoint.runs.spec import RunSpec, SpecError, validate, write
from saddlepoint.runs.store import Store, StoreError, is_record_of


@dataclass(frozen=True)
class Summary:
    """One run in one line."""

    folder: str
    target: str
    threat: str  # norm and radius
    examples: int  # number of images
    done: int  # finished cells of the current request
    total: int  # all cells of the current request
    finished: bool  # all cells are there, and record and report belong to this request
    verdict: str = ""  # this field and the next three are empty until the run has finished
    clean_accuracy: float | None = None
    robust_accuracy: float | None = None
    interval: tuple[float, float] | None = None  # of the robust accuracy
    at_work: int = 0  # cells that processes on this machine are computing now
    problem: str = ""  # why the folder cannot be read; the other fields are then empty
    # "audit" or "game". For a game, the accuracies are those of NEED, the robust accuracy
    # against an attacker that chooses the strongest attack for each image.
    kind: str = "audit"
    # Whether the files have the hashes of the manifest. This is no verification.
    hashes: str = ""


@dataclass(frozen=True)
class CellState:
    """One cell of a run."""

    key: str
    state: str  # done, missing or damaged
    adversary: str = ""
    rows: tuple[int, int] | None = None  # index of the first and the last image
    seconds: float | None = None
    bytes: int = 0  # size of its files
    problem: str = ""  # why the cell is damaged


@dataclass(frozen=True)
class Details:
    """Everything that a folder contains about its run."""

    summary: Summary
    target_sha256: str
    spec: str  # TOML; empty for a model that was passed in memory
    cells: tuple[CellState, ...]
    foreign: int  # cells that the current request does not use
    events: tuple[dict[str, Any], ...]  # of the ledger, in order of time
    timing: dict[str, float] = field(default_factory=dict)  # seconds by adversary
    # Seconds by name of a diagnostic, of the current request.
    diagnostics: dict[str, float] = field(default_factory=dict)


def runs(folder: Path) -> list[Summary]:
    """The runs in a folder and in all folders below it.

    Raises:
        StoreError: The folder does not exist.
    """
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}. Give a folder that contains runs.")
    return [summary(place) for place in _run_folders(folder)]


def summary(folder: Path) -> Summary:
    """One run in one line. If it cannot be read, `problem` says why."""
    store = Store(folder)
    try:
        run = store.run()
        total = len(run["cells"])
        done = sum(store.has(key) for key in run["cells"])
        about: dict[str, Any] = {
            "target": run["target"]["name"],
            "threat": _perturbation_set(run),
            "examples": run["examples"],
            "kind": run.get("kind", "audit"),
            "hashes": hash_state(folder),
        }
        at_work = sum(store.is_locked(key) for key in run["cells"] if not store.has(key))
        outcome = _outcome(store, run) if done == total else {"finished": False}
    except (StoreError, SpecError, OSError) as error:
        return Summary(str(folder), "", "", 0, 0, 0, False, problem=str(error))
    return Summary(str(folder), **about, done=done, total=total, at_work=at_work, **outcome)


def _outcome(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    """The result of the current request as the fields of a `Summary`.

    A record that an earlier request left in the folder does not count: its numbers belong to
    another target or threat model. The verdict is computed from the other fields of the record.
    """
    try:
        if run.get("kind") == "game":
            return _game_outcome(GameRecord.load(store.folder), store, run)
        record = read_record(store.folder)
    except (OSError, ValueError):
        return {"finished": False}
    if not is_record_of(record["run"], store, run):
        return {"finished": False}
    return {
        "finished": True,
        "verdict": str(conclusion_of(record).verdict),
        "clean_accuracy": record["clean_accuracy"],
        "robust_accuracy": record["robust_accuracy"],
        "interval": (record["interval"]["low"], record["interval"]["high"]),
    }


def _game_outcome(game: GameRecord, store: Store, run: dict[str, Any]) -> dict[str, Any]:
    if not is_record_of(game.run, store, run):
        return {"finished": False}
    need = game.strategies[0]
    return {
        "finished": True,
        "verdict": f"value {percent(game.value.value)}",
        "clean_accuracy": need.clean.value,
        "robust_accuracy": need.per_image.value,
        "interval": (need.per_image.low, need.per_image.high),
    }


def details(folder: Path) -> Details:
    """Specification, cells, events and timing of one run.

    Raises:
        StoreError: The folder contains no run that can be read.
    """
    store = Store(folder)
    run = store.run()
    seconds = _seconds(store)
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
        events=tuple(store.events()),
        timing=timing,
        diagnostics=_diagnostics(Store(folder / DIAGNOSTICS), run),
    )


def _seconds(store: Store) -> dict[str, float]:
    """Seconds by key, of all cells that the ledger names."""
    events = [event for event in store.events() if event["event"] == "cell"]
    return {event["key"]: float(event["seconds"]) for event in events}


def _diagnostics(store: Store, run: dict[str, Any]) -> dict[str, float]:
    """Seconds by name of the diagnostics of the current request; damaged ones are left out."""
    seconds = _seconds(store)
    total: dict[str, float] = {}
    for key in run.get("diagnostics", ()):
        if store.has(key):
            try:
                name = store.record(key).get("measurement") or ""
            except StoreError:
                continue
            total[name] = total.get(name, 0.0) + seconds.get(key, 0.0)
    return total


def _specification(run: dict[str, Any]) -> str:
    return write(_spec(run)) if run["spec"] else ""


def _spec(run: dict[str, Any]) -> RunSpec | GameSpec:
    if run.get("kind") == "game":
        return validate(GameSpec, run["spec"], "the specification in run.json")
    return validate(RunSpec, run["spec"], "the specification in run.json")


def _perturbation_set(run: dict[str, Any]) -> str:
    """`Linf 8/255`, as the specification writes it, or computed from the threat model."""
    if run["spec"]:
        threat = _spec(run).threat
        return f"{threat.norm.capitalize()} {threat.radius}"
    space = run["threat"]["space"]
    norm = f"{space['p']:g}" if isinstance(space["p"], float) else space["p"]
    return f"L{norm} {space['radius']:g}"


def _cell(store: Store, key: str, seconds: float | None) -> CellState:
    if not store.has(key):
        return CellState(key, "missing")
    try:
        record = store.record(key)
    except StoreError as error:
        return CellState(key, "damaged", problem=str(error))
    size = sum(path.stat().st_size for path in store.cells.glob(f"{key}.*"))
    names = (f"{key}.json", f"{key}.safetensors")
    size += sum(store.archived()[name].stored for name in names if name in store.archived())
    rows = record.get("rows", [0])
    adversary = record.get("adversary") or ""
    return CellState(key, "done", adversary, (rows[0], rows[-1]), seconds, size)


def _run_folders(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        below[:] = sorted(set(below) - {*OWN_FOLDERS}) if "run.json" in files else sorted(below)
        if "run.json" in files:
            yield Path(place)
