"""Verification of a stored run.

Every cell is read, every worst point is evaluated again, and the record is derived again from the
cells. The target is loaded in a new process from the specification in run.json, so its code runs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits import Audit, Plan, collect
from saddlepoint.audits.cells import AttackCell, Measurement, Values
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.verdict import Check, ItemName, Verification
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode
from saddlepoint.locate import describe_error
from saddlepoint.phrases import agree, count, count_of, noun_for, percent, whole
from saddlepoint.runs.spec import RunSpec, migrate_spec
from saddlepoint.runs.store import REQUESTED, Store, StoreError, is_record_of, versions
from saddlepoint.runs.work import Work, load, torch_threads

__all__ = [
    "VERSION",
    "Check",
    "Verification",
    "VerificationError",
    "cell_check",
    "checks",
    "confirmed",
    "of_other_version",
    "other_version_check",
    "undamaged_cells",
    "verify",
]

VERSION = "version"  # check that fails if hashes cannot be compared between versions

# Fields of a record that the cells do not determine, or that are checked elsewhere.
_NOT_DERIVED = ("seconds", "versions", "verdict", "reasons", "schema", "run")
_MARGIN = 1e-4  # tolerance for logits; predictions and accuracies must agree exactly


def verify(folder: Path, check: Callable[[Store], Iterable[Check]] | None = None) -> Verification:
    """Check every cell and evaluate every point again, in a new process.

    The process starts in the folder where the run was started, for relative paths.

    Args:
        folder: the folder of the run.
        check: the checks of this kind of run; default: those of an audit.
    """
    store = Store(folder)
    store.run()
    started_in = [
        event["folder"]
        for event in store.events()
        if event["event"] == REQUESTED and Path(event["folder"]).is_dir()
    ]
    start = Path(started_in[-1]) if started_in else Path.cwd()
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            found = pool.submit(_verify, folder.resolve(), start, check or checks).result()
    except BrokenProcessPool:
        message = "the process that evaluated the points died, perhaps because memory ran out."
        found = (Check("process", False, message),)
    return Verification(str(folder), found)


class VerificationError(ValueError):
    """A stored audit differs from what its cells and its target show."""


def confirmed(audit: Audit) -> Verification:
    """All checks of a stored audit.

    Raises:
        ValueError: the audit was not stored.
        VerificationError: a check failed, or the object differs from the stored record.
    """
    if not audit.folder:
        raise ValueError(
            "only a stored audit can be verified: give `out=` to the audit, or load it with "
            "`Audit.load(folder)`."
        )
    found = verify(Path(audit.folder))
    wrong = [f"{check.name}: {check.message}" for check in found.checks if not check.passed]
    saved = Audit.load(audit.folder)
    names = ("x", "y", "worst_points", "correct", "answered")
    changed = [
        name for name in names if not torch.equal(getattr(saved, name), getattr(audit, name).cpu())
    ]
    if changed or saved.record() != audit.record():
        fields = f": {', '.join(changed)}" if changed else ""
        wrong.append(f"record: the object differs from the files in {audit.folder}{fields}.")
    if wrong:
        raise VerificationError(
            "\n".join([f"the audit in {audit.folder} could not be verified:", *wrong])
        )
    return found


def _verify(
    folder: Path, start: Path, check: Callable[[Store], Iterable[Check]]
) -> tuple[Check, ...]:
    os.chdir(start)
    return tuple(check(Store(folder)))


def checks(store: Store) -> Iterator[Check]:
    """All checks in order; checks that depend on a failed one are left out."""
    run = store.run()
    episodes, damage = undamaged_cells(store)
    yield cell_check(run, episodes, damage)
    try:
        work = _work(run)
    except (Exception, SystemExit) as error:  # code of the target can raise anything
        reason = error if isinstance(error, ValueError) else describe_error(error)
        yield Check("target", False, f"it cannot be loaded again: {reason}")
        return
    target = _same_target(run, work)
    if not target.passed and of_other_version(run):
        target = other_version_check(run, "The record is not derived again from its cells.")
    yield target
    try:
        audit = Audit.load(store.folder)
    except (ValueError, OSError) as error:
        yield Check("record", False, str(error))
        return
    if not is_record_of(audit.run, store, run):
        yield Check(
            "record",
            False,
            "audit.json belongs to another request than run.json. Run the audit to its end.",
        )
        return
    complete = {*work.keys.values(), *run["cells"]} <= episodes.keys()
    yield from _points(work, audit)
    if complete and audit.worst_points.shape == work.plan.job.x.shape:
        yield from _derived(work, audit, episodes, run)


def cell_check(run: dict[str, Any], found: Mapping[str, Episode], damage: Sequence[str]) -> Check:
    """Whether every cell of the run exists and is undamaged."""
    missing = [key for key in run["cells"] if key not in found]
    message = (
        f"{count(len(found), 'cell')} {agree(len(found), 'has', 'have')} the recorded hash and seal"
    )
    if damage:
        verb = agree(len(damage), "does", "do")
        message += f", {whole(len(damage))} {verb} not: {' '.join(damage[:5])}"
    else:
        message += "."
    if missing:
        verb = agree(len(missing), "is", "are")
        message += (
            f" {count_of(len(missing), len(run['cells']), 'cell')} {verb} missing or damaged."
        )
    return Check("cells", not (damage or missing), message)


def of_other_version(run: Mapping[str, Any]) -> bool:
    """Whether another version of saddlepoint or torch wrote the request."""
    return bool(run["versions"] != versions())


def other_version_check(run: Mapping[str, Any], consequence: str) -> Check:
    """A failed check: the hashes of the run cannot be compared with those of this version."""
    software = [f"{name} {number}" for name, number in run["versions"].items()]
    wrote = f"{' and '.join(software)} wrote" if software else "An earlier version wrote"
    return Check(
        VERSION,
        False,
        f"{wrote} this run. Hashes of targets and cells differ between versions, so it cannot be "
        f"checked whether the target has changed. {consequence} Run the same command with this "
        "version in a new folder to compare the results.",
    )


def _work(run: dict[str, Any]) -> Work:
    if run["spec"] is None:
        raise ValueError(
            "the audit was of a model in memory, which cannot be loaded again. "
            "Write a factory and audit 'file.py:factory'."
        )
    spec = RunSpec.model_validate_json(json.dumps(migrate_spec(run["spec"])))
    return load(spec, allow_unusual=True)


def _same_target(run: dict[str, Any], work: Work) -> Check:
    name = run["target"]["name"]
    expected = run["target"]["sha256"]
    if work.target != expected:
        return Check(
            "target",
            False,
            f"{name} is not the model that was audited: expected hash {expected[:16]}…, "
            f"found {work.target[:16]}….",
        )
    if json.loads(json.dumps(describe(work.plan.job.threat))) != run["threat"]:
        return Check(
            "target", False, "the threat model in run.json differs from that of its specification."
        )
    if not set(work.keys.values()) <= set(run["cells"]):
        return Check(
            "target",
            False,
            "data, threat model, attacks or seed differ from the audited ones: "
            "the cells have other keys.",
        )
    return Check(
        "target",
        True,
        f"{name} is the model that was audited, and data, threat model, attacks and seed agree.",
    )


def _points(work: Work, audit: Audit) -> Iterator[Check]:
    """The images, labels and worst points of the record, against the data and the target."""
    job = work.plan.job
    if audit.x.shape != job.x.shape or audit.worst_points.shape != job.x.shape:
        shapes = f"images of shape {list(audit.x.shape)}, the data {list(job.x.shape)}"
        yield Check("images", False, f"the record holds {shapes}.")
        return
    points = audit.worst_points.to(job.x)
    different = ~(audit.x.to(job.x) == job.x).flatten(1).all(1)
    yield _rows("images", different, "equal the data", "differ from the data", "image")
    yield _rows(
        "labels", audit.y.to(job.y) != job.y, "equal the data", "differ from the data", "label"
    )
    inside = points.isfinite().flatten(1).all(1) & job.threat.space.contains(points, job.x)
    space = job.threat.space
    yield _rows("inside", ~inside, f"lie within {space}", f"lie outside {space}")
    if inside.all():
        yield from _scores(work, audit, points)


class _StoredAttacks:
    """Attack cells from the store; measurements are computed again."""

    def __init__(self, work: Work, episodes: Mapping[str, Episode]) -> None:
        self.work = work
        self._episodes = episodes

    def attacks(self, plan: Plan, cells: Sequence[AttackCell]) -> Sequence[Episode]:
        """The stored results of attack cells."""
        if len(plan.choices) > len(self.work.plan.choices):
            self.work = self.work.for_plan(plan)
        keys = [self.work.keys[cell] for cell in cells]
        if not set(keys) <= self._episodes.keys():
            raise VerificationError("the cells lead to other remedies than those that were run.")
        return [self._episodes[key] for key in keys]

    def measurements(self, plan: Plan, cells: Sequence[Measurement]) -> Sequence[Values]:
        """The results of measurements."""
        return [cell.compute(plan.job) for cell in cells]


def _derived(
    work: Work, audit: Audit, episodes: Mapping[str, Episode], run: Mapping[str, Any]
) -> Iterator[Check]:
    """The record that follows from the cells, against the stored one."""
    execution = _StoredAttacks(work, episodes)
    try:
        with torch_threads(work.threads):
            derived = conclude(collect(work.plan, execution), audit.seconds)
    except VerificationError as error:
        yield Check("remedies", False, str(error))
        return
    if set(execution.work.keys.values()) != set(run["cells"]):
        yield Check(
            "remedies",
            False,
            "run.json names cells that neither its specification nor the symptoms call for.",
        )
        return
    points = audit.worst_points.to(derived.worst_points)
    moved = ~(derived.worst_points == points).flatten(1).all(1)
    yield _rows("points", moved, "equal the cells", "differ from the cells")
    # Another version may write the same request with other options.
    ignored = (*_NOT_DERIVED, "command") if of_other_version(run) else _NOT_DERIVED
    yield _same_record(audit, derived, ignored)


def _scores(work: Work, audit: Audit, points: Tensor) -> Iterator[Check]:
    """Every worst point, evaluated again."""
    job = work.plan.job
    with torch_threads(work.threads):
        checked = Episode.joined([job.recheck(points, rows) for rows in job.groups])
    correct = checked.correct[0].cpu()
    predicted = checked.answered[0].cpu()
    yield _rows(
        "answers",
        (correct != audit.correct) | (predicted != audit.answered),
        "have the recorded prediction",
        "have another prediction than recorded",
    )
    margin = checked.margin[0].cpu()
    recorded = audit.examples
    same = torch.isclose(margin, recorded.margin, rtol=_MARGIN, atol=_MARGIN, equal_nan=True)
    same &= torch.isclose(checked.size.cpu(), recorded.size, rtol=_MARGIN, atol=1e-7)
    yield _rows(
        "margins",
        ~same,
        "have the recorded margin and size",
        "have another margin or size",
    )
    accuracy = float(correct.mean())
    message = (
        f"{percent(accuracy, 2)} of {count(len(correct), 'worst point')} are classified correctly, "
    )
    equal = accuracy == audit.robust_accuracy
    message += "as recorded." if equal else f"but {percent(audit.robust_accuracy, 2)} are recorded."
    yield Check("accuracy", equal, message)


def _same_record(audit: Audit, derived: Audit, ignored: Sequence[str]) -> Check:
    """Whether audit.json follows from the cells, except for the ignored fields."""
    claimed = _comparable(audit.record(), ignored)
    expected = _comparable(derived.record(), ignored)
    differ = [name for name in expected if claimed.get(name) != expected[name]]
    if differ:
        return Check("record", False, f"audit.json differs from the cells in: {', '.join(differ)}.")
    return Check("record", True, "audit.json follows from the cells.")


def _comparable(record: dict[str, Any], ignored: Sequence[str]) -> dict[str, Any]:
    """The record without ignored fields, times, and texts that quote measured noise."""
    record = json.loads(json.dumps(record))
    rows = [
        {name: value for name, value in row.items() if name != "seconds"} for row in record["rows"]
    ]
    symptoms = [(symptom["name"], symptom["level"]) for symptom in record["symptoms"]]
    # The cost of a prediction is measured in seconds.
    items = [
        (item["name"], item["state"])
        for item in record["checklist"]
        if item["name"] != ItemName.COST
    ]
    compared = {**record["compared"], "cost": None}
    kept = {name: value for name, value in record.items() if name not in ignored}
    return {**kept, "rows": rows, "symptoms": symptoms, "checklist": items, "compared": compared}


def undamaged_cells(store: Store) -> tuple[dict[str, Episode], list[str]]:
    """All undamaged attack cells, and what is wrong with the others."""
    found = {}
    damage = []
    for key in store.keys():  # noqa: SIM118
        try:
            found[key] = store.get(key)
        except StoreError as error:
            damage.append(str(error))
    return found, damage


def _rows(name: str, wrong: Tensor, good: str, bad: str, what: str = "worst point") -> Check:
    if not wrong.any():
        return Check(name, True, f"{count(len(wrong), what)} {_agreed(len(wrong), good)}.")
    first = ", ".join(str(row) for row in wrong.nonzero().flatten()[:5].tolist())
    more = ", …" if wrong.sum() > 5 else ""
    found = int(wrong.sum())
    message = f"{count_of(found, len(wrong), what)} {_agreed(found, bad)}"
    return Check(name, False, f"{message}: {noun_for(found, 'example')} {first}{more}.")


def _agreed(n: int, text: str) -> str:
    """A text that begins with a verb in the plural, in agreement with a count."""
    verb, _, rest = text.partition(" ")
    return f"{agree(n, 'has' if verb == 'have' else f'{verb}s', verb)} {rest}"
