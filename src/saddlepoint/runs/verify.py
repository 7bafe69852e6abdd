"""Verification of a stored run.

Every file is compared with the manifest, every cell is read, every point is evaluated again, and
every record is derived again from the cells. Some attack cells can be computed again
(`saddlepoint.runs.replay`). The target is loaded in a new process from the specification in
run.json, so its code runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from saddlepoint.audits import Audit
from saddlepoint.audits.cells import AttackCell
from saddlepoint.audits.verdict import Check, Verification
from saddlepoint.describe import describe
from saddlepoint.evaluation import Episode
from saddlepoint.locate import describe_error
from saddlepoint.phrases import agree, count, count_of, whole
from saddlepoint.reading import ReadError
from saddlepoint.runs.compare import plain
from saddlepoint.runs.manifest import differences, read_manifest
from saddlepoint.runs.pool import process_pool
from saddlepoint.runs.replay import NO_REPLAY, Replay, replay_check
from saddlepoint.runs.spec import RunSpec, parse
from saddlepoint.runs.store import (
    REQUESTED,
    Store,
    StoreError,
    identity,
    is_record_of,
    versions,
)
from saddlepoint.runs.unfinished import check_finished
from saddlepoint.runs.verify_points import outcomes, record_points
from saddlepoint.runs.verify_record import NOT_VERIFIABLE, derived_checks
from saddlepoint.runs.work import Work, load

__all__ = [
    "NOT_VERIFIABLE",
    "VERSION",
    "Check",
    "Verification",
    "VerificationError",
    "cell_check",
    "checks",
    "confirmed",
    "manifest_check",
    "of_other_version",
    "other_version_check",
    "undamaged_cells",
    "verify",
]

VERSION = "version"  # check of a run that another version wrote
_LISTED = 3  # files in a message


def verify(folder: Path, check: Callable[[Store], Iterable[Check]] | None = None) -> Verification:
    """Check every cell and evaluate every point again, in a new process.

    The process starts in the folder where the run was started, for relative paths.

    Args:
        folder: the folder of the run.
        check: the checks of this kind of run; default: those of an audit.

    Raises:
        UnfinishedError: the run is not finished.
        StoreError: the folder contains no run that can be read.
    """
    store = Store(folder)
    check_finished(folder)
    started_in = [
        event["folder"]
        for event in store.events()
        if event["event"] == REQUESTED and Path(event.get("folder") or "").is_dir()
    ]
    start = Path(started_in[-1]) if started_in else Path.cwd()
    try:
        with process_pool(1) as pool:
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
        ValueError: the audit was not stored, or was of a model in memory.
        VerificationError: a check failed, or the object differs from the stored record.
    """
    if not audit.folder:
        raise ValueError(
            "only a stored audit of a target that can be loaded again can be verified, and this "
            "audit was not stored. A model in memory cannot be loaded again: write a factory, run "
            "`saddlepoint audit file.py:factory --out FOLDER`, and pass `Audit.load(FOLDER)`."
        )
    _spec(Store(Path(audit.folder)).run())  # fails before a process is started
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


def checks(store: Store, replay: Replay = NO_REPLAY) -> Iterator[Check]:
    """All checks in order; checks that depend on a failed one are left out.

    Args:
        store: the folder of the run.
        replay: which attack cells are computed again; default: none.
    """
    run = store.run()
    yield manifest_check(store, run)
    episodes, damage = undamaged_cells(store)
    yield cell_check(run, episodes, damage)
    try:
        spec = _spec(run)
        work = load(spec, allow_unusual=True)
    except (Exception, SystemExit) as error:  # code of the target can raise anything
        reason = error if isinstance(error, ValueError) else describe_error(error)
        yield Check("target", False, f"it cannot be loaded again: {reason}")
        return
    target = _same_target(run, work)
    other_version = of_other_version(run) and not _has_own_keys(run, work)
    if other_version:
        instead = "It is verified by its outcomes: points, predictions and accuracies."
        target = other_version_check(run, instead, passed=True)
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
    yield from record_points(work, audit)
    complete = set(run["cells"]) <= episodes.keys()
    if not complete or audit.worst_points.shape != work.plan.job.x.shape:
        return
    if other_version:
        yield outcomes(audit, run, store, episodes)
        yield from _replayed(work, _keys_by_name(work, store, run), episodes, replay, strict=False)
        return
    if set(work.keys.values()) <= episodes.keys():
        yield from derived_checks(work, audit, store, episodes, run, spec)
        yield from _replayed(work, work.keys, episodes, replay, strict=True)


def _replayed(
    work: Work,
    keys: Mapping[AttackCell, str],
    episodes: Mapping[str, Episode],
    replay: Replay,
    *,
    strict: bool,
) -> Iterator[Check]:
    if replay.cells != 0:
        yield replay_check(work, keys, episodes, replay, same_version=strict)


def _keys_by_name(work: Work, store: Store, run: Mapping[str, Any]) -> dict[AttackCell, str]:
    """The stored cells of a run of another version that this version plans as well."""
    names = {one.name: number for number, one in enumerate(work.plan.adversaries)}
    found = {}
    for key in run["cells"]:
        record = store.record(key)
        cell = record.get("group", 0), names.get(record.get("adversary") or "", -1)
        if cell in work.keys:
            found[cell] = key
    return found


def manifest_check(store: Store, run: Mapping[str, Any]) -> Check:
    """Whether all files have the hashes of the manifest, and the manifest is that of the run."""
    name = "manifest"
    try:
        manifest = read_manifest(store.folder)
        if manifest is None:
            old = of_other_version(run)
            message = "there is no manifest.json"
            rest = "; earlier versions wrote none." if old else ". Run the same command again."
            return Check(name, old, f"{message}{rest}")
        found = [str(one) for one in differences(store.folder, manifest)]
    except (ReadError, OSError) as error:
        return Check(name, False, f"{error}.")
    missing = [key for key in run["cells"] if f"cells/{key}.json" not in manifest["files"]]
    if missing:
        found.append(f"manifest.json: {count(len(missing), 'cell')} of run.json not listed")
    if manifest["run"] != identity(dict(run)):
        found.append("manifest.json, run: it is the manifest of another request")
    if found:
        more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        return Check(name, False, f"{'; '.join(found[:_LISTED])}{more}.")
    return Check(name, True, f"{count(len(manifest['files']), 'file')} have the recorded hashes.")


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
    """Whether another version of saddlepoint or torch wrote the request, as run.json says."""
    return bool(run["versions"] != versions())


def _has_own_keys(run: Mapping[str, Any], work: Work) -> bool:
    """Whether the cells have keys of this version, which depend on the version."""
    return set(work.keys.values()) <= set(run["cells"])


def other_version_check(run: Mapping[str, Any], consequence: str, *, passed: bool) -> Check:
    """Names the version that wrote a run: hashes of other versions cannot be compared.

    Args:
        run: the content of run.json.
        consequence: what is checked instead, or what is not checked.
        passed: whether the outcomes are checked instead.
    """
    software = [f"{name} {number}" for name, number in run["versions"].items()]
    wrote = f"{' and '.join(software)} wrote" if software else "An earlier version wrote"
    return Check(
        VERSION,
        passed,
        f"{wrote} this run. Hashes of targets and cells differ between versions. {consequence}",
    )


def _spec(run: dict[str, Any]) -> RunSpec:
    """The specification as it was passed; that with all defaults must follow from it."""
    if run["spec"] is None:
        raise ValueError(
            "the audit was of a model in memory, which cannot be loaded again. "
            "Write a factory and audit 'file.py:factory'."
        )
    spec = parse(run["spec"], "the specification in run.json")
    passed = parse(run["passed"] or {}, "the specification in run.json") if run["passed"] else spec
    return passed if passed == spec else spec


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
    if plain(describe(work.plan.job.threat)) != run["threat"]:
        return Check(
            "target", False, "the threat model in run.json differs from that of its specification."
        )
    if not _has_own_keys(run, work):
        return Check(
            "target",
            False,
            "data, threat model, attacks or seed differ from the audited ones: "
            "the cells have other keys.",
        )
    if of_other_version(run):
        return Check(
            "target",
            False,
            f"run.json, versions: recorded {run['versions']}, but the keys of the cells are those "
            f"of {versions()}.",
        )
    return Check(
        "target",
        True,
        f"{name} is the model that was audited, and data, threat model, attacks and seed agree.",
    )


class StoredEpisodes(Mapping[str, Episode]):
    """The results of attack cells by key, read when they are used: together they may be large."""

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self._store = store
        self._keys = dict.fromkeys(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys  # the default reads the cell

    def __getitem__(self, key: str) -> Episode:
        if key not in self._keys:
            raise KeyError(key)
        return self._store.get(key)


def undamaged_cells(store: Store) -> tuple[StoredEpisodes, list[str]]:
    """All undamaged attack cells, and what is wrong with the others."""
    found = []
    damage = []
    for key in store.keys():  # noqa: SIM118
        try:
            store.get(key)
        except (StoreError, KeyError) as error:
            damage.append(str(error))
        else:
            found.append(key)
    return StoredEpisodes(store, found), damage
