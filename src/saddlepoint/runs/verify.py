"""Does a run hold what it claims? Every cell is read, and every worst point is put to the target again.

The target is loaded anew, in a process that has seen nothing of the run, from the specification in run.json: its code is run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits.plan import conclude
from saddlepoint.audits.result import Audit
from saddlepoint.audits.verdict import DEARER, Check, Verification
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode
from saddlepoint.locate import describe_error
from saddlepoint.runs.inspect import answers
from saddlepoint.runs.rounds import Finished, rounds
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.runs.work import Work, load, torch_threads

__all__ = [
    "Check",
    "Verification",
    "VerificationError",
    "cell_check",
    "checks",
    "confirmed",
    "sound_cells",
    "verify",
]

_TIMED = (
    "seconds",
    "versions",
    "verdict",
    "reasons",
    "schema",
    "run",
)  # of a record: not determined by the cells, or looked at elsewhere
_MARGIN = 1e-4  # logits of another machine's arithmetic; answers and accuracies must agree exactly


def verify(folder: Path) -> Verification:
    """Look at every cell, then score every worst point again in a fresh process, started where the audit was asked for."""
    store = Store(folder)
    store.run()
    asked = [
        event["folder"]
        for event in store.events()
        if event["event"] == "asked" and Path(event["folder"]).is_dir()
    ]
    start = (
        Path(asked[-1]) if asked else Path.cwd()
    )  # a target or data may have been named by a relative path
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            checks = pool.submit(_verify, folder.resolve(), start).result()
    except BrokenProcessPool:
        checks = (
            Check(
                "process",
                False,
                "the process that scored the points died, perhaps for want of memory.",
            ),
        )
    return Verification(str(folder), checks)


class VerificationError(ValueError):
    """A kept audit is not what it claims to be."""


def confirmed(audit: Audit) -> Verification:
    """The checks of a kept audit, all passed; else a `VerificationError` that names every disagreement.

    What is held in memory must be what lies in the folder: a record that was changed after loading claims something else.
    """
    found = verify(Path(audit.folder))
    wrong = [f"{check.name}: {check.message}" for check in found.checks if not check.passed]
    saved = Audit.load(audit.folder)
    names = ("x", "y", "worst_points", "correct", "answered")
    moved = [
        name for name in names if not torch.equal(getattr(saved, name), getattr(audit, name).cpu())
    ]
    if moved or saved.record() != audit.record():
        wrong.append(
            f"record: what is held differs from what {audit.folder} holds{': ' + ', '.join(moved) if moved else ''}."
        )
    if wrong:
        raise VerificationError(
            "\n".join([f"the audit in {audit.folder} is not what it claims to be:", *wrong])
        )
    return found


def _verify(folder: Path, start: Path) -> tuple[Check, ...]:
    os.chdir(start)
    store = Store(folder)
    if store.run().get("kind") == "game":
        from saddlepoint.games.runs.verify import checks as game_checks

        return tuple(game_checks(store))
    return tuple(checks(store))


def checks(store: Store) -> Iterator[Check]:
    """One check after the other; those that rest on one that failed are left out."""
    run = store.run()
    episodes, damage = sound_cells(store)
    yield cell_check(run, episodes, damage)
    try:
        work = _work(run)
    except (Exception, SystemExit) as error:  # the target's code can raise anything
        yield Check(
            "target",
            False,
            f"it cannot be loaded again: {error if isinstance(error, ValueError) else describe_error(error)}",
        )
        return
    yield _same_target(run, work)
    try:
        audit = Audit.load(store.folder)
    except (ValueError, OSError) as error:
        yield Check("record", False, str(error))
        return
    if not answers(audit.run, store, run):
        yield Check(
            "record",
            False,
            "audit.json belongs to another request than run.json. Run the audit to its end.",
        )
        return
    whole = {*work.keys.values(), *run["cells"]} <= episodes.keys()
    yield from _points(work, audit, episodes if whole else {}, set(run["cells"]))


def cell_check(run: dict[str, Any], sound: Mapping[str, Episode], damage: Sequence[str]) -> Check:
    """Is every cell of the run there, and sound?"""
    missing = [key for key in run["cells"] if key not in sound]
    told_damage = f": {' '.join(damage[:5])}" if damage else "."
    return Check(
        "cells", not (damage or missing),
        f"{len(sound)} cells have the hash and the seal they should have"
        + (f", {len(damage)} have not{told_damage}" if damage else "")
        + (f" {len(missing)} of {len(run['cells'])} cells of this run are missing or damaged." if missing else "."),
    )  # fmt: skip


def _work(run: dict[str, Any]) -> Work:
    if run["spec"] is None:
        raise ValueError(
            "the audit was of a model in memory, which no specification leads to. Give it a factory and audit 'file.py:factory'."
        )
    return load(RunSpec.model_validate_json(json.dumps(run["spec"])))


def _same_target(run: dict[str, Any], work: Work) -> Check:
    if work.target != run["target"]["sha256"]:
        expected = run["target"]["sha256"][:16]
        found = work.target[:16]
        message = f"{run['target']['name']} is not the model that was audited: expected hash {expected}…, found {found}…."
        return Check("target", False, message)
    if json.loads(json.dumps(describe(work.plan.job.threat))) != run["threat"]:
        return Check(
            "target",
            False,
            "the threat in run.json is not the one that its specification describes.",
        )
    if not set(work.keys.values()) <= set(run["cells"]):
        return Check(
            "target",
            False,
            "data, threat, attacks or seed are not those that were audited: the cells have other names.",
        )
    return Check(
        "target",
        True,
        f"{run['target']['name']} is the model that was audited, and data, threat, attacks and seed agree.",
    )


def _points(
    work: Work, audit: Audit, episodes: Mapping[str, Episode], named: set[str]
) -> Iterator[Check]:
    """What the record says of each example, against the data, the cells and the target's own answers."""
    job = work.plan.job
    if audit.x.shape != job.x.shape or audit.worst_points.shape != job.x.shape:
        yield Check(
            "images",
            False,
            f"the record holds {list(audit.x.shape)} images, the data {list(job.x.shape)}.",
        )
        return
    x = job.x
    y = job.y
    points = audit.worst_points.to(job.x)
    yield _rows(
        "images",
        ~(audit.x.to(x) == x).flatten(1).all(1),
        "are those of the data",
        "differ from the data",
    )
    yield _rows("labels", audit.y.to(y) != y, "are those of the data", "differ from the data")
    outside = ~(points.isfinite().flatten(1).all(1) & job.threat.space.contains(points, x))
    yield _rows(
        "inside",
        outside,
        f"lie within {job.threat.space}",
        f"lie outside {job.threat.space}",
        "worst points",
    )
    if not outside.any():
        yield from _scores(work, audit, points)
    if not episodes:
        return

    def finish(wanted: Work) -> Finished:
        if not set(wanted.keys.values()) <= episodes.keys():
            raise VerificationError(
                "what the cells show calls for other remedies than those that were tried."
            )
        return episodes.__getitem__

    try:
        played = rounds(work, finish)
    except VerificationError as error:
        yield Check("remedies", False, str(error))
        return
    if set(played.work.keys.values()) != named:
        yield Check(
            "remedies",
            False,
            "run.json names cells that neither its specification nor what was found asks for.",
        )
        return
    with torch_threads(work.threads):
        derived = conclude(played.work.plan, played.evidence, audit.seconds)
    moved = ~(derived.worst_points == points).flatten(1).all(1)
    yield _rows(
        "points",
        moved,
        "are those of the cells",
        "are not those that the cells hold",
        "worst points",
    )
    yield _same_record(audit, derived)


def _scores(work: Work, audit: Audit, points: Tensor) -> Iterator[Check]:
    """Every worst point answered again."""
    job = work.plan.job
    with torch_threads(work.threads):
        judged = Episode.joined([job.judge(points, rows) for rows in job.groups])
    correct = judged.correct[0].cpu()
    answered = judged.answered[0].cpu()
    yield _rows("answers", (correct != audit.correct) | (answered != audit.answered), "are answered as recorded",
                "are answered otherwise than recorded", "worst points")  # fmt: skip
    margin = judged.margin[0].cpu()
    size = judged.size.cpu()
    apart = ~torch.isclose(
        margin, audit.examples.margin, rtol=_MARGIN, atol=_MARGIN, equal_nan=True
    )
    apart |= ~torch.isclose(size, audit.examples.size, rtol=_MARGIN, atol=1e-7)
    yield _rows(
        "margins",
        apart,
        "have the margin and size that was recorded",
        "have another margin or size",
        "worst points",
    )
    found = float(correct.mean())
    same = found == audit.robust_accuracy
    yield Check(
        "accuracy", same,
        f"{100 * found:.2f} % of {len(correct)} worst points are answered rightly, "
        + ("as recorded." if same else f"but {100 * audit.robust_accuracy:.2f} % are recorded."),
    )  # fmt: skip


def _same_record(audit: Audit, derived: Audit) -> Check:
    """audit.json follows from the cells, all but times and versions."""
    claimed = _untimed(audit.record())
    due = _untimed(derived.record())
    differ = [name for name in due if claimed.get(name) != due[name]]
    if differ:
        return Check(
            "record", False, f"audit.json says otherwise than the cells: {', '.join(differ)}."
        )
    return Check("record", True, "audit.json is what the cells lead to.")


def _untimed(record: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {name: value for name, value in row.items() if name != "seconds"} for row in record["rows"]
    ]
    symptoms = [
        (symptom["name"], symptom["level"]) for symptom in record["symptoms"]
    ]  # the words may tell of measured noise
    # Words and clocks tell of this machine; what an answer costs is known to the clock alone.
    items = [
        (item["name"], item["state"]) for item in record["checklist"] if item["name"] != DEARER
    ]
    compared = {**record["compared"], "cost": None}
    kept = {name: value for name, value in record.items() if name not in _TIMED}
    return {**kept, "rows": rows, "symptoms": symptoms, "checklist": items, "compared": compared}


def sound_cells(store: Store) -> tuple[dict[str, Episode], list[str]]:
    """All sound cells, and what is wrong with the others."""
    sound = {}
    damage = []
    for key in store.keys():  # noqa: SIM118
        try:
            sound[key] = store.get(key)
        except StoreError as error:
            damage.append(str(error))
    return sound, damage


def _rows(name: str, wrong: Tensor, good: str, bad: str, what: str = "") -> Check:
    what = what or name
    if not wrong.any():
        return Check(name, True, f"{len(wrong)} {what} {good}.")
    first = ", ".join(str(row) for row in wrong.nonzero().flatten()[:5].tolist())
    return Check(
        name,
        False,
        f"{int(wrong.sum())} of {len(wrong)} {what} {bad}: examples {first}{', …' if wrong.sum() > 5 else ''}.",
    )
