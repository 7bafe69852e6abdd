"""A changed run is found by `runs verify`, even if its author has written a new manifest."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs.runs import ATTACKS, spec

from saddlepoint.evaluation import Episode
from saddlepoint.evaluation.referee import FixedPoints
from saddlepoint.reports.html import write_report
from saddlepoint.reports.verify import audit_checks
from saddlepoint.rng import Keys
from saddlepoint.runs import work
from saddlepoint.runs.compact import compact
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.manifest import hash_state, write_manifest
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.replay import NO_REPLAY, Replay, replay_check
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store
from saddlepoint.runs.verify import NOT_VERIFIABLE

SPEC = spec("contrast", n=20, attacks=ATTACKS[:2]).model_copy(
    update={"threat": spec().threat.model_copy(update={"radius": "0.12"}), "claim": 0.9}
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("tampering") / "run"
    audit = run_spec(SPEC, out, executor=Serial())
    assert 0 < audit.robust_accuracy < audit.clean_accuracy
    write_report(audit, out / "report.html")
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def failed(folder: Path, replay: Replay = NO_REPLAY) -> dict[str, str]:
    found = audit_checks(Store(folder), replay)
    return {check.name: check.message for check in found if not check.passed}


def test_the_unchanged_run_is_verified(finished):
    work.load.cache_clear()
    assert failed(finished) == {}
    assert hash_state(finished) == "as recorded"


def field(file: str, *place: str | int, to: object) -> Callable[[Path], None]:
    """Change one field of a JSON file."""

    def change(run: Path) -> None:
        record = json.loads((run / file).read_text())
        inner = record
        for part in place[:-1]:
            inner = inner[part]
        assert inner[place[-1]] != to
        inner[place[-1]] = to
        (run / file).write_text(json.dumps(record))

    return change


def without(file: str, *place: str | int) -> Callable[[Path], None]:
    """Remove an entry of a list in a JSON file."""

    def change(run: Path) -> None:
        record = json.loads((run / file).read_text())
        inner = record
        for part in place[:-1]:
            inner = inner[part]
        del inner[place[-1]]
        (run / file).write_text(json.dumps(record))

    return change


def point(name: str, value: Callable[[torch.Tensor], object]) -> Callable[[Path], None]:
    """Change the entry of one image in points.safetensors."""

    def change(run: Path) -> None:
        tensors = load_file(run / "points.safetensors")
        tensors[name][3] = value(tensors[name][3])
        save_file(tensors, run / "points.safetensors")

    return change


def text(file: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace a text in a file."""

    def change(run: Path) -> None:
        before = (run / file).read_text()
        assert old in before
        (run / file).write_text(before.replace(old, new))

    return change


def repack(store: Store, key: str, about: dict[str, object] | None = None, **tensors) -> None:
    """Write a cell with other content, and with valid hash and seal."""
    record = store.record(key)
    kept = {name: record[name] for name in ("group", "rows", "description")}
    episode = replace(store.get(key), **tensors)
    store.put(PackedCell.of_episode(key, episode, {**kept, **(about or {})}, 0.0))


def cell(change: Callable[[Store, str], None]) -> Callable[[Path], None]:
    """Change a cell of an attack."""

    def apply(run: Path) -> None:
        store = Store(run)
        keys = [k for k in store.keys() if store.record(k)["adversary"] == "apgd-1"]  # noqa: SIM118
        change(store, keys[0])

    return apply


def point_outside(store: Store, key: str) -> None:
    points = store.get(key).points.clone()
    points[0] = (points[0] + 0.5).clamp(0, 1)
    repack(store, key, points=points)


def diagnostic(name: str, tensor: str, value: object) -> Callable[[Path], None]:
    """Change the result of a diagnostic, with valid hash and seal."""

    def change(run: Path) -> None:
        store = Store(run / "diagnostics")
        for key in store.keys():  # noqa: SIM118
            if store.record(key)["measurement"] == name:
                values = dict(store.values(key))
                before = values[tensor]
                values[tensor] = torch.as_tensor(value, dtype=before.dtype).expand_as(before)
                store.put(PackedCell.of_values(key, name, values, 0.0))

    return change


def ledger(run: Path) -> None:
    path = run / "ledger.jsonl"
    path.write_text(path.read_text().replace('"seconds": 0.', '"seconds": 7.'))


AUDIT = "audit.json"
TAMPERINGS = {
    "verdict": (field(AUDIT, "verdict", to="credible"), "record", "audit.json, verdict: "),
    "reasons": (field(AUDIT, "reasons", to=["all passed."]), "record", "audit.json, reasons"),
    "state of an item": (
        field(AUDIT, "checklist", 0, "state", to="not applicable"),
        "record",
        "checklist.0.state: recorded",
    ),
    "text of an item": (field(AUDIT, "checklist", 1, "evidence", to="fine."), "record", "evidence"),
    "dropped item": (without(AUDIT, "checklist", -1), "record", "checklist."),
    "calls of the defense": (field(AUDIT, "compared", "cost", "calls", to=9.0), "record", "calls"),
    "seconds of the defense": (
        field(AUDIT, "compared", "cost", "seconds", to=9.0),
        "record",
        "compared.cost.seconds: recorded 9.0, recomputed ",
    ),
    "no cost": (field(AUDIT, "compared", "cost", to=None), "record", "compared.cost"),
    "claim": (field(AUDIT, "compared", "claim", to=0.1), "record", "compared.claim"),
    "target": (field(AUDIT, "target", to="zoo:robust"), "record", "audit.json, target: "),
    "threat": (field(AUDIT, "threat", to="Linf radius 8/255"), "record", "audit.json, threat: "),
    "threat description": (
        field(AUDIT, "threat_description", "access", to="score"),
        "record",
        "threat_description.access",
    ),
    "budget": (field(AUDIT, "budget", to="thorough"), "record", "budget"),
    "seed": (field(AUDIT, "seed", to=4), "record", "seed"),
    "clean accuracy": (field(AUDIT, "clean_accuracy", to=1.0), "record", "clean_accuracy"),
    "robust accuracy": (field(AUDIT, "robust_accuracy", to=0.99), "accuracy", "recorded"),
    "interval": (field(AUDIT, "interval", "low", to=0.5), "record", "interval.low"),
    "row": (field(AUDIT, "rows", 0, "robust_accuracy", to=1.0), "record", "rows.0.robust_accuracy"),
    "passes": (field(AUDIT, "rows", 0, "forward", to=9000.0), "record", "rows.0.forward"),
    "seconds of a row": (field(AUDIT, "rows", 0, "seconds", to=900.0), "record", "rows.0.seconds"),
    "reason of a row": (field(AUDIT, "rows", 0, "reason", to="strongest"), "record", "reason"),
    "loss curve": (
        field(AUDIT, "rows", 0, "loss_curve", "images", 0, to=99),
        "record",
        "rows.0.loss_curve.images.0",
    ),
    "symptoms": (
        field(AUDIT, "symptoms", to=[{"name": "memory", "level": "note", "message": "fine."}]),
        "record",
        "symptoms.0",
    ),
    "versions": (field(AUDIT, "versions", "torch", to="1.0"), "record", "versions.torch"),
    "winner": (field(AUDIT, "winner", 0, to="square"), "record", "winner.0"),
    "data": (field(AUDIT, "data", to="cifar10"), "record", "audit.json, data"),
    "classes": (field(AUDIT, "classes", 0, to="cat"), "record", "classes.0"),
    "command": (field(AUDIT, "command", to="saddlepoint audit"), "record", "command"),
    "label": (point("y", lambda y: (y + 1) % 10), "labels", "example 3."),
    "image": (point("x", lambda x: x * 0.5), "images", "example 3."),
    "worst point": (point("worst_points", lambda x: x * 0.999), "points", "example 3."),
    "outcome": (point("correct", lambda c: 1 - c), "answers", "example 3."),
    "prediction": (point("answered", lambda c: (c + 1) % 10), "answers", "example 3."),
    "margin": (point("margin", lambda m: m + 1), "margins", "example 3."),
    "smallest perturbation": (
        point("smallest", lambda s: s.clamp(max=0.06) / 2),
        "record",
        "smallest[3] of points",
    ),
    "forward passes": (point("forward", lambda f: f + 1), "record", "forward[3] of points"),
    "verified flag": (point("verified", lambda v: ~v), "record", "verified[3] of points"),
    "name in run.json": (
        field("run.json", "target", "name", to="robust"),
        "request",
        "run.json, target.name: recorded",
    ),
    "passed arguments": (field("run.json", "passed", "claim", to=0.1), "request", "passed"),
    "adversaries": (without("run.json", "adversaries", -1), "request", "adversaries.2"),
    "reasons of attacks": (field("run.json", "reasons", "apgd-0", to="x"), "request", "reasons."),
    "device": (field("run.json", "device", to="cuda"), "request", "device"),
    "versions in run.json": (
        field("run.json", "versions", "torch", to="1.0"),
        "target",
        "run.json, versions: recorded",
    ),
    "diagnostics in run.json": (without("run.json", "diagnostics", 0), "request", "diagnostics."),
    "spec.toml": (text("spec.toml", '"0.12"', '"0.03"'), "specification", "spec.toml, line"),
    "report.html": (text("report.html", "Verdict: ", "Verdict: not "), "report", "report.html"),
    "ledger": (ledger, "record", "rows.0.seconds"),
    "point of a cell outside the set": (cell(point_outside), "attacks", "1 point outside the set"),
    "description of a cell": (
        cell(lambda store, key: repack(store, key, {"description": {"kind": "APGD-1000"}})),
        "attacks",
        "description.kind: recorded",
    ),
    "rows of a cell": (
        cell(lambda store, key: repack(store, key, {"rows": [0, 4], "group": 3})),
        "attacks",
        "group: recorded",
    ),
    "outcome of a cell": (
        cell(lambda store, key: repack(store, key, answered=store.get(key).answered * 0)),
        "attacks",
        "than recorded, first of image",
    ),
    "diagnostic": (diagnostic("single-step attack", "correct", 0.25), "diagnostics", "single-step"),
    "shrunk point": (diagnostic("smallest perturbations", "size", 0.01), "diagnostics", "smallest"),
    "measured cost": (diagnostic("cost of a prediction", "calls", 9.0), "diagnostics", "cost of"),
    "measured seconds": (
        diagnostic("cost of a prediction", "seconds", [9.0, 1e-6]),
        "diagnostics",
        "seconds: recorded",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_changed_run_with_a_new_manifest_is_found(run, name):
    change, check, message = TAMPERINGS[name]
    change(run)
    write_manifest(Store(run), Store(run).run())
    found = failed(run)
    assert "manifest" not in found
    assert message in found[check], found


def test_a_changed_file_without_a_new_manifest_is_named(run):
    field(AUDIT, "verdict", to="credible")(run)
    assert failed(run)["manifest"].startswith("audit.json: recorded ")
    assert hash_state(run) == "changed: audit.json"


def test_a_changed_record_is_not_blamed_on_the_report(run):
    """Writing the report again would put the changed value into it."""
    field(AUDIT, "robust_accuracy", to=0.9375)(run)
    assert {"manifest", "record"} <= failed(run).keys()
    assert "report" not in failed(run)
    write_manifest(Store(run), Store(run).run())
    assert "record" in failed(run)
    assert "report" not in failed(run)


def test_a_changed_time_is_not_blamed_on_the_report(run):
    """Nothing in a run determines the time, but the manifest names the changed file."""
    field(AUDIT, "seconds", to=1e6)(run)
    assert set(failed(run)) == {"manifest"}


def test_a_list_of_runs_compares_the_sizes_of_all_files(run):
    key, lost, *_ = Store(run).keys()
    path = run / "cells" / f"{key}.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert hash_state(run) == f"changed: cells/{key[:12]}….safetensors"
    Store(run).discard(lost)
    assert f"cells/{lost[:12]}….json" in hash_state(run)


def test_a_list_of_runs_accepts_a_ledger_that_has_grown_and_compacted_cells(run):
    Store(run).log("note")
    compact(run)
    assert not list((run / "cells").glob("*.safetensors"))
    assert hash_state(run) == "as recorded"
    (run / "ledger.jsonl").write_bytes(b"")
    assert hash_state(run) == "changed: ledger.jsonl"


def test_fields_that_cannot_be_verified_are_listed_with_the_reason(run):
    field(AUDIT, "seconds", to=1e6)(run)
    field(AUDIT, "versions", "python", to="2.7")(run)
    field(AUDIT, "stages", 0, "seconds", to=1e6)(run)
    (run / "report.html").unlink()  # it shows the seconds
    write_manifest(Store(run), Store(run).run())
    assert failed(run) == {}
    assert all(name in NOT_VERIFIABLE for name in ("audit.json, seconds", "ledger.jsonl"))
    assert "audit.json, versions.python" in NOT_VERIFIABLE
    assert "audit.json, stages" in NOT_VERIFIABLE


MANY = SPEC.model_copy(update={"attacks": ATTACKS, "target": spec("means").target, "claim": None})


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """36 attack cells."""
    out = tmp_path_factory.mktemp("many") / "run"
    run_spec(MANY, out, executor=Serial())
    return out


CHOICES = {
    "cells": lambda groups, attacks, rng: rng.sample(
        [(g, a) for g in groups for a in attacks], len(groups) * len(attacks) // 4
    ),
    "all attacks on some images": lambda groups, attacks, rng: [
        (g, a) for g in rng.sample(groups, len(groups) // 4) for a in attacks
    ],
    "some attacks on all images": lambda groups, attacks, rng: [
        (g, a) for g in groups for a in rng.sample(attacks, len(attacks) // 4)
    ],
}


def forged(run: Path, seed: int, choice: str = "cells") -> dict[str, Episode]:
    """The cells of a run, with harmless noise for the adversarial points of one in four of them."""
    store = Store(run)
    loaded = work.load(MANY, allow_unusual=True)
    job = loaded.plan.job
    episodes = {key: store.get(key) for key in store.keys()}  # noqa: SIM118
    attacks = [*range(1, len(loaded.plan.adversaries))]
    noise = job.threat.space.sample(job.x, Keys.of(seed, torch.arange(len(job.x))))
    harmless = FixedPoints("noise", noise)
    names = ("points", "correct", "chosen", "answered", "margin", "size", "copies")
    cells = CHOICES[choice]([*range(len(job.groups))], attacks, random.Random(seed))
    for group, attack in cells:
        key = loaded.keys[group, attack]
        episode = job.play(harmless, job.groups[group])
        episodes[key] = replace(episodes[key], **{name: getattr(episode, name) for name in names})
    return episodes


@pytest.mark.parametrize("choice", CHOICES)
def test_a_withheld_attack_is_found_by_computing_five_cells_again(many, choice):
    loaded = work.load(MANY, allow_unusual=True)
    for seed in range(20):
        found = replay_check(loaded, loaded.keys, forged(many, seed, choice), Replay(5, str(seed)))
        assert not found.passed, seed
        assert "the cell does not hold the results of this attack" in found.message


def test_nothing_but_a_replay_finds_a_withheld_attack(many, tmp_path):
    run = shutil.copytree(many, tmp_path / "run")
    for key, episode in forged(many, 0).items():
        repack(Store(run), key, **{f.name: getattr(episode, f.name) for f in fields(episode)})
    shutil.rmtree(run / "diagnostics")
    run_spec(MANY, run, executor=Serial())  # conclude again
    assert failed(run) == {}
    assert set(failed(run, Replay(5))) == {"replay"}


def test_an_honest_run_is_computed_again_with_the_same_bytes(many):
    loaded = work.load(MANY, allow_unusual=True)
    store = Store(many)
    episodes = {key: store.get(key) for key in store.keys()}  # noqa: SIM118
    for replay in (Replay(5), Replay(None)):
        found = replay_check(loaded, loaded.keys, episodes, replay)
        assert found.passed
        assert "7 of 36" in found.message or "36 of 36" in found.message
        assert "with the same outcomes" not in found.message
