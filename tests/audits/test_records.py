"""Records of older versions are read with the present names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.audits.linear_defenses import APGD, BPDA, ROUNDED, THREAT, X, Y

import saddlepoint as sp
from saddlepoint.audits.catalog import ItemName, SymptomName
from saddlepoint.audits.records import ITEM_NAMES, SCHEMA, STATE_NAMES, SYMPTOM_NAMES
from saddlepoint.audits.verdict import State
from saddlepoint.schema import SchemaError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """An audit with symptoms and failed items, saved to disk."""
    folder = tmp_path_factory.mktemp("audits") / "run"
    return sp.audit(ROUNDED, X, Y, threat=THREAT, adversaries=[APGD, BPDA], out=folder)


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of the saved audit that a test may change."""
    return Path(shutil.copytree(saved.folder, tmp_path / "copy"))


def edit(folder, change):
    file = folder / "audit.json"
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record))


def old_name(name, renamed):
    return next((old for old, new in renamed.items() if new == name), name)


def to_schema_3(record):
    """Undo the migrations from schema 3 on."""
    record["checklist"] = record["checklist"][1:]
    record["schema"] = 3
    record["verdict"] = "overstated"
    del record["threat_description"], record["stages"], record["engine"]
    for row in record["rows"]:
        row["ascent"] = row.pop("loss_curve")
        del row["minimum_norm"]
    for symptom in record["symptoms"]:
        symptom["name"] = old_name(symptom["name"], SYMPTOM_NAMES)
        symptom["remedy"] = "Send another attack."
        symptom["trait"] = ""
    for item in record["checklist"]:
        item["name"] = old_name(item["name"], ITEM_NAMES)
        item["state"] = old_name(item["state"], STATE_NAMES)


def test_a_record_of_schema_3_has_the_present_names(saved, copy):
    edit(copy, to_schema_3)
    loaded = sp.Audit.load(copy)
    assert loaded.symptoms == saved.symptoms
    assert loaded.checklist == saved.checklist
    assert loaded.rows == saved.rows
    assert (loaded.verdict, loaded.reasons) == (saved.verdict, saved.reasons)
    assert loaded.threat_description == {}
    assert loaded.record()["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("threat", "n", "reason"),
    [
        ("Linf radius 0/255, gradient access", 80, "the radius is 0"),
        ("L2 radius 0, gradient access", 80, "the radius is 0"),
        ("L2 radius 1e-05, gradient access", 80, None),
        ("a set of my own", 80, None),
        ("Linf radius 8/255, gradient access", 12, "12 images are too few"),
    ],
)
def test_a_record_of_schema_4_says_whether_enough_was_tested(copy, threat, n, reason):
    def to_schema_4(record):
        record.update(schema=4, threat=threat, n=n, checklist=record["checklist"][1:])
        record["winner"] = record["winner"][:n]

    edit(copy, to_schema_4)
    points = copy / "points.safetensors"
    save_file({name: tensor[:n].clone() for name, tensor in load_file(points).items()}, points)
    item = sp.Audit.load(copy).checklist[0]
    assert item.name is ItemName.TESTED
    assert item.state is (State.FAIL if reason else State.PASS)
    assert reason is None or reason in item.evidence


def to_schema_0(record):
    to_schema_3(record)
    record["schema"] = 0
    for name in ("data", "classes", "command", "run", "checklist", "compared", "reasons"):
        del record[name]
    for row in record["rows"]:
        del row["ascent"]


def test_a_record_of_schema_0_has_no_checklist_and_is_inconclusive(saved, copy):
    edit(copy, to_schema_0)
    loaded = sp.Audit.load(copy)
    assert loaded.robust_accuracy == saved.robust_accuracy
    assert loaded.verdict == "inconclusive"
    assert "the checklist was not run." in loaded.reasons
    assert all(row.loss_curve.passes == () for row in loaded.rows)


def test_rejection_scores_of_older_versions_are_read(saved, copy):
    file = copy / "points.safetensors"
    tensors = load_file(file)
    scores = saved.correct.double().expand(4, 1, -1).contiguous()
    save_file({**tensors, "refusal": scores}, file)
    assert sp.Audit.load(copy).rejection_scores.equal(scores)


@pytest.mark.parametrize(
    ("renamed", "enumeration"),
    [(SYMPTOM_NAMES, SymptomName), (ITEM_NAMES, ItemName), (STATE_NAMES, State)],
    ids=["symptoms", "items", "states"],
)
def test_every_old_name_has_a_present_name(renamed, enumeration):
    present = {member.value for member in enumeration}
    assert set(renamed.values()) <= present
    assert not set(renamed) & present


def test_a_record_of_a_newer_version_is_not_called_damaged(copy):
    edit(copy, lambda record: record.update(schema=99))
    with pytest.raises(SchemaError, match="Update saddlepoint"):
        sp.Audit.load(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("rows"),
        lambda record: record["symptoms"][0].update(name="unknown"),
        lambda record: record.update(n=[]) or record.pop("interval"),
    ],
    ids=["missing rows", "unknown symptom", "missing interval"],
)
def test_a_damaged_record_is_rejected(copy, change):
    edit(copy, change)
    with pytest.raises(ValueError, match="holds no complete audit"):
        sp.Audit.load(copy)
