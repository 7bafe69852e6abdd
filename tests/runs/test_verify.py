"""A run is what it claims to be, or the check that disagrees says where."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs.runs import ATTACKS, TARGETS, spec

import saddlepoint as sp
from saddlepoint.runs import verify as verify_module
from saddlepoint.runs import work
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Packed, Store
from saddlepoint.runs.verify import Verification, VerificationError, checks, verify

SMALL = spec(n=20, attacks=ATTACKS[:2])
SUPPORTS = [
    "cells",
    "target",
    "images",
    "labels",
    "inside",
    "answers",
    "margins",
    "accuracy",
    "points",
    "record",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    run_spec(SMALL, out, executor=Serial())
    return out


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def failed(folder) -> dict[str, str]:
    work.load.cache_clear()
    return {check.name: check.message for check in checks(Store(folder)) if not check.passed}


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


def test_a_sound_run_passes_every_check_in_a_fresh_process(made, capfd):
    found = verify(made)
    assert found.passed
    assert [check.name for check in found.checks] == SUPPORTS


def test_a_point_that_was_moved_within_the_set_is_found(run):
    x = load_file(run / "points.safetensors")["x"]
    edit_tensors(run, worst_points=in_row(3, (x[3] + 0.02).clamp(0, 1)))
    wrong = failed(run)
    assert "1 of 20 worst points are not those that the cells hold: examples 3." in wrong["points"]
    assert "margins" in wrong  # and the target's answer there is another


def test_an_audit_verifies_itself_in_a_fresh_process(made):
    assert [check.name for check in sp.Audit.load(made).verify().checks] == SUPPORTS


def tampered_point(run):
    x = load_file(run / "points.safetensors")["x"]
    edit_tensors(run, worst_points=in_row(3, (x[3] + 0.02).clamp(0, 1)))


def tampered_label(run):
    edit_tensors(run, y=in_row(2, lambda y: (y + 1) % 10))


def tampered_model(run):
    record = json.loads((run / "run.json").read_text())
    edit(run / "run.json", target={**record["target"], "sha256": "0" * 64})


@pytest.mark.parametrize(
    ("tamper", "says"),
    [(tampered_point, "points: "), (tampered_label, "labels: "), (tampered_model, "target: ")],
)
def test_an_audit_that_was_tampered_with_does_not_verify(run, monkeypatch, tamper, says):
    tamper(run)
    # In this process: a fresh one for each case takes seconds, and finds the same (see above).
    monkeypatch.setattr(
        verify_module,
        "verify",
        lambda folder: Verification(str(folder), tuple(checks(Store(folder)))),
    )
    work.load.cache_clear()
    with pytest.raises(VerificationError, match=says):
        sp.Audit.load(run).verify()


def test_what_is_held_must_be_what_was_saved(run, monkeypatch):
    monkeypatch.setattr(verify_module, "verify", lambda folder: Verification(str(folder), ()))
    audit = sp.Audit.load(run)
    with pytest.raises(VerificationError, match="what is held differs"):
        replace(audit, robust_accuracy=1.0).verify()
    with pytest.raises(VerificationError, match=r"what is held differs.*: y"):
        replace(audit, y=audit.y + 1).verify()
    with pytest.raises(ValueError, match="only a kept audit can be verified"):
        replace(audit, folder="").verify()


def test_a_point_outside_the_set_is_found_and_not_put_to_the_target(run):
    edit_tensors(run, worst_points=in_row(5, lambda row: 1 - row))
    wrong = failed(run)
    assert "1 of 20 worst points lie outside Linf radius 0.05: examples 5." in wrong["inside"]
    assert "answers" not in wrong


def test_a_point_that_is_no_number_is_outside(run):
    edit_tensors(run, worst_points=in_row(0, float("nan")))
    assert "examples 0." in failed(run)["inside"]


def test_a_changed_label_and_a_changed_image_are_found(run):
    edit_tensors(run, y=in_row(2, lambda y: (y + 1) % 10), x=in_row(4, lambda row: row * 0.5))
    wrong = failed(run)
    assert "examples 2." in wrong["labels"]
    assert "examples 4." in wrong["images"]


def test_an_answer_that_is_recorded_otherwise_is_found_even_if_the_accuracy_was_made_to_fit(run):
    edit_tensors(run, correct=lambda t: torch.ones_like(t))
    edit(run / "audit.json", robust_accuracy=1.0)
    wrong = failed(run)
    assert {"answers", "accuracy", "record"} <= set(wrong)
    assert "but 100.00 % are recorded" in wrong["accuracy"]
    assert "robust_accuracy" in wrong["record"]


@pytest.mark.parametrize("name", ["clean_accuracy", "n", "seed", "budget"])
def test_a_record_that_does_not_follow_from_the_cells_is_found(run, name):
    value = json.loads((run / "audit.json").read_text())[name]
    edit(run / "audit.json", **{name: "thorough" if isinstance(value, str) else value + 1})
    assert name in failed(run)["record"]


def test_another_model_behind_the_same_name_is_found(tmp_path):
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


def test_another_threat_or_seed_in_run_json_is_found(run):
    record = json.loads((run / "run.json").read_text())
    edit(
        run / "run.json",
        spec={**record["spec"], "threat": {**record["spec"]["threat"], "eps": "0.1"}},
    )
    assert "the threat in run.json" in failed(run)["target"]
    edit(run / "run.json", spec={**record["spec"], "seed": 7})
    assert "the cells have other names" in failed(run)["target"]


def test_a_flipped_bit_and_a_lost_cell_are_found(run):
    first, second, *_ = Store(run).keys()
    path = run / "cells" / f"{first}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    Store(run).discard(second)
    wrong = failed(run)["cells"]
    assert first[:12] in wrong
    assert "2 of 12 cells of this run are missing or damaged" in wrong


def test_a_cell_that_was_forged_and_sealed_anew_is_found(run):
    """Hash and seal fit, but the point is another: the record no longer follows from the cells."""
    store = Store(run)
    (last, *_) = [k for k in Store(run).keys() if Store(run).record(k)["adversary"] == "apgd-1"]  # noqa: SIM118
    episode = store.get(last)
    record = store.record(last)
    about = {name: record[name] for name in ("group", "rows", "description")}
    harmless = type(episode)(
        **{
            **vars(episode),
            "margin": torch.full_like(episode.margin, 99.0),
            "correct": episode.correct * 0,
        }
    )
    store.put(Packed.of(last, harmless, about, 0.0))
    wrong = failed(run)
    assert "cells" not in wrong
    assert "record" in wrong


def test_an_unfinished_run_and_a_model_in_memory_do_not_pass(run, tmp_path):
    (run / "audit.json").unlink()
    assert "no audit.json" in failed(run)["record"]
    planned = work.load(SMALL).plan.job
    sp.audit(
        planned.defense.net,
        planned.x,
        planned.y,
        threat=sp.Linf(0.05),
        budget="quick",
        out=tmp_path / "memory",
    )
    assert "a model in memory" in failed(tmp_path / "memory")["target"]


def test_a_record_of_another_request_does_not_pass_for_the_present_one(run):
    edit(run / "audit.json", run="another")
    assert "belongs to another request" in failed(run)["record"]


def test_an_older_record_that_does_not_name_its_request_is_told_by_the_ledger(run):
    edit(run / "audit.json", run="")
    assert failed(run) == {}
    Store(run).log("concluded", run="another", robust_accuracy=1.0, seconds=0.0)
    assert "belongs to another request" in failed(run)["record"]
