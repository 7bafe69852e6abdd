"""Verification of stored runs: every change of a run fails the check that is about it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs.runs import ATTACKS, TARGETS, spec

import saddlepoint as sp
from saddlepoint.runs import verify as verify_module
from saddlepoint.runs import work
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store
from saddlepoint.runs.verify import Verification, VerificationError, checks, verify

SMALL = spec(n=20, attacks=ATTACKS[:2])
CHECKS = [
    "manifest",
    "cells",
    "target",
    "images",
    "labels",
    "inside",
    "answers",
    "margins",
    "accuracy",
    "attacks",
    "points",
    "diagnostics",
    "request",
    "specification",
    "record",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    run_spec(SMALL, out, executor=Serial())
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def failed(folder) -> dict[str, str]:
    """Failed checks, except that of the manifest, which every change fails."""
    work.load.cache_clear()
    found = checks(Store(folder))
    return {one.name: one.message for one in found if not one.passed and one.name != "manifest"}


def edit_tensors(folder, **changes):
    tensors = load_file(folder / "points.safetensors")
    save_file(
        {**tensors, **{name: change(tensors[name].clone()) for name, change in changes.items()}},
        folder / "points.safetensors",
    )


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def in_row(row, value):
    def change(t):
        t[row] = value(t[row]) if callable(value) else value
        return t

    return change


def test_an_unchanged_run_passes_every_check_in_a_new_process(finished):
    found = verify(finished)
    assert found.passed
    assert [check.name for check in found.checks] == CHECKS


def test_a_point_moved_within_the_perturbation_set_is_detected(run):
    x = load_file(run / "points.safetensors")["x"]
    edit_tensors(run, worst_points=in_row(3, (x[3] + 0.02).clamp(0, 1)))
    wrong = failed(run)
    assert "1 of 20 worst points differs from the cells: example 3." in wrong["points"]
    assert "margins" in wrong  # the target has other logits there


@pytest.mark.slow
def test_a_loaded_audit_is_verified_in_a_new_process(finished):
    assert [check.name for check in sp.verify(sp.Audit.load(finished)).checks] == CHECKS


def change_point(run):
    x = load_file(run / "points.safetensors")["x"]
    edit_tensors(run, worst_points=in_row(3, (x[3] + 0.02).clamp(0, 1)))


def change_label(run):
    edit_tensors(run, y=in_row(2, lambda y: (y + 1) % 10))


def change_model_hash(run):
    record = json.loads((run / "run.json").read_text())
    edit(run / "run.json", target={**record["target"], "sha256": "0" * 64})


@pytest.mark.parametrize(
    ("change", "message"),
    [(change_point, "points: "), (change_label, "labels: "), (change_model_hash, "target: ")],
)
def test_verification_of_a_changed_audit_raises_an_error(run, monkeypatch, change, message):
    change(run)
    # In this process: a new one for each case takes seconds.
    monkeypatch.setattr(
        verify_module,
        "verify",
        lambda folder: Verification(str(folder), tuple(checks(Store(folder)))),
    )
    work.load.cache_clear()
    with pytest.raises(VerificationError, match=message):
        sp.verify(sp.Audit.load(run))


def test_an_audit_in_memory_must_equal_its_files(run, monkeypatch):
    monkeypatch.setattr(verify_module, "verify", lambda folder: Verification(str(folder), ()))
    audit = sp.Audit.load(run)
    with pytest.raises(VerificationError, match="the object differs from the files"):
        sp.verify(replace(audit, robust_accuracy=1.0))
    with pytest.raises(VerificationError, match=r"the object differs from the files.*: y"):
        sp.verify(replace(audit, y=audit.y + 1))


def test_a_script_without_a_guard_is_not_run_again(finished, tmp_path):
    script = tmp_path / "script.py"
    lines = ["import sys", "import saddlepoint as sp", "print('begin')"]
    lines += ["print(len(sp.verify(sp.Audit.load(sys.argv[1])).checks), 'checks')"]
    script.write_text("\n".join(lines))
    words = [sys.executable, str(script), str(finished)]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found.count("begin") == 1
    assert found[-1].endswith("checks")


def test_an_audit_of_a_model_in_memory_is_refused_before_a_process_starts(monkeypatch, tmp_path):
    def refuse(*_):
        pytest.fail("a process was started")

    monkeypatch.setattr(verify_module, "process_pool", refuse)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()
    x = torch.rand(4, 1, 2, 2)
    audit = sp.audit(net, x, net(x).argmax(1), budget="quick", out=tmp_path / "run")
    with pytest.raises(ValueError, match="model in memory"):
        sp.verify(audit)


def test_an_audit_that_was_not_stored_cannot_be_verified(finished):
    with pytest.raises(ValueError, match="this audit was not stored") as error:
        sp.verify(replace(sp.Audit.load(finished), folder=""))
    # `out=` alone would not help: an audit that is not stored is one of a model in memory.
    assert "A model in memory cannot be loaded again: write a factory" in str(error.value)


def test_a_point_outside_the_perturbation_set_is_detected_and_not_evaluated(run):
    edit_tensors(run, worst_points=in_row(5, lambda row: 1 - row))
    wrong = failed(run)
    assert "1 of 20 worst points lies outside Linf radius 0.05: example 5." in wrong["inside"]
    assert "answers" not in wrong


def test_a_point_with_nan_is_outside_the_perturbation_set(run):
    edit_tensors(run, worst_points=in_row(0, float("nan")))
    assert "example 0." in failed(run)["inside"]


def test_a_changed_label_and_a_changed_image_are_detected(run):
    edit_tensors(run, y=in_row(2, lambda y: (y + 1) % 10), x=in_row(4, lambda row: row * 0.5))
    wrong = failed(run)
    assert "example 2." in wrong["labels"]
    assert "example 4." in wrong["images"]


def test_changed_outcomes_are_detected_even_if_the_accuracy_was_changed_accordingly(run):
    edit_tensors(run, correct=lambda t: torch.ones_like(t))
    edit(run / "audit.json", robust_accuracy=1.0)
    wrong = failed(run)
    assert {"answers", "accuracy", "record"} <= set(wrong)
    assert "but 100 % are recorded" in wrong["accuracy"]
    assert "robust_accuracy" in wrong["record"]


@pytest.mark.parametrize("name", ["clean_accuracy", "n", "seed", "budget"])
def test_a_record_that_does_not_follow_from_the_cells_is_detected(run, name):
    value = json.loads((run / "audit.json").read_text())[name]
    edit(run / "audit.json", **{name: "thorough" if isinstance(value, str) else value + 1})
    assert name in failed(run)["record"]


def test_another_model_with_the_same_name_is_detected(tmp_path):
    target = tmp_path / "net.py"
    target.write_text(TARGETS.read_text())
    run_spec(
        SMALL.model_copy(update={"target": f"{target}:linear"}), tmp_path / "run", executor=Serial()
    )
    assert failed(tmp_path / "run") == {}
    target.write_text(TARGETS.read_text().replace("manual_seed(0)", "manual_seed(1)"))
    wrong = failed(tmp_path / "run")
    assert "is not the model that was audited: expected hash" in wrong["target"]
    assert "answers" in wrong
    target.unlink()
    assert "cannot be loaded again: There is no file" in failed(tmp_path / "run")["target"]


def test_another_radius_or_seed_in_run_json_is_detected(run):
    record = json.loads((run / "run.json").read_text())
    edit(
        run / "run.json",
        spec={**record["spec"], "threat": {**record["spec"]["threat"], "radius": "0.1"}},
    )
    assert "the threat model in run.json" in failed(run)["target"]
    edit(run / "run.json", spec={**record["spec"], "seed": 7})
    assert "the cells have other keys" in failed(run)["target"]


def test_a_flipped_bit_and_a_lost_cell_are_detected(run):
    first, second, *_ = Store(run).keys()
    path = run / "cells" / f"{first}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    Store(run).discard(second)
    wrong = failed(run)["cells"]
    assert first[:12] in wrong
    assert "2 of 12 cells are missing or damaged" in wrong


def test_a_changed_cell_with_a_valid_hash_and_seal_is_detected(run):
    """The record no longer follows from the cells."""
    store = Store(run)
    records = [store.record(key) for key in store.keys()]  # noqa: SIM118
    keys = [record["key"] for record in records if record["adversary"] == "apgd-1"]
    episode = store.get(keys[0])
    record = store.record(keys[0])
    about = {name: record[name] for name in ("group", "rows", "description")}
    changed = replace(
        episode,
        margin=torch.full_like(episode.margin, 99.0),
        correct=episode.correct * 0,
    )
    store.put(PackedCell.of_episode(keys[0], changed, about, 0.0))
    wrong = failed(run)
    assert "cells" not in wrong
    assert "record" in wrong


def test_an_unfinished_run_fails_the_check_of_its_record(run):
    (run / "audit.json").unlink()
    assert "no audit.json" in failed(run)["record"]


def test_a_model_in_memory_cannot_be_loaded_again(tmp_path):
    job = work.load(SMALL).plan.job
    sp.audit(
        job.defense.net,
        job.x,
        job.y,
        threat=sp.Linf(0.05),
        budget="quick",
        out=tmp_path / "memory",
    )
    assert "a model in memory" in failed(tmp_path / "memory")["target"]


def test_a_record_of_another_request_is_detected(run):
    edit(run / "audit.json", run="another")
    assert "belongs to another request" in failed(run)["record"]


def test_the_ledger_identifies_an_old_record_that_does_not_name_its_request(run):
    edit(run / "audit.json", run="")
    assert set(failed(run)) == {"record"}  # this version writes it
    Store(run).log("concluded", run="another", robust_accuracy=1.0, seconds=0.0)
    assert "belongs to another request" in failed(run)["record"]


def test_a_changed_command_is_detected(run):
    edit(run / "audit.json", command="saddlepoint audit net.py:make --coins private")
    assert "audit.json, command: recorded" in failed(run)["record"]


@pytest.mark.parametrize("versions", [{}, {"saddlepoint": "0.0.9", "torch": "2.0"}])
def test_another_version_in_run_json_is_detected_by_the_keys_of_the_cells(run, versions):
    edit(run / "run.json", versions=versions)
    assert "but the keys of the cells are those of" in failed(run)["target"]


def test_a_run_without_a_manifest_is_not_verified(run):
    (run / "manifest.json").unlink()
    found = {check.name: check for check in checks(Store(run))}
    assert not found["manifest"].passed
    assert "there is no manifest.json" in found["manifest"].message
