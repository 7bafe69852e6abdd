"""Records of earlier versions are migrated; records of later versions are rejected."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load, save
from tests.runs.runs import ATTACKS, CountingExecutor, content, spec

import saddlepoint as sp
from saddlepoint.atomic import sha256_hex
from saddlepoint.audits import Audit
from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.runs import packed_cell
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.schema import SchemaError, migrated


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    run_spec(spec(n=8, attacks=ATTACKS[:1]), out, executor=Serial())
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edit(path, **changes):
    record = {
        name: value
        for name, value in {**json.loads(path.read_text()), **changes}.items()
        if value is not None
    }
    path.write_text(json.dumps(record))


def test_migrations_are_applied_one_after_the_other():
    table = {
        0: lambda r: {**r, "path": "a"},
        1: lambda r: {**r, "path": r["path"] + "b"},
        2: lambda r: {**r, "path": r["path"] + "c"},
    }
    assert migrated({}, table, 3, "here") == {"schema": 3, "path": "abc"}
    assert migrated({"schema": 2, "path": "x"}, table, 3, "here") == {"schema": 3, "path": "xc"}
    assert migrated({"schema": 3}, table, 3, "here") == {"schema": 3}


def test_a_missing_migration_raises_an_error():
    with pytest.raises(SchemaError, match="schema 1, which cannot be brought to 2"):
        migrated({"schema": 1}, {0: dict}, 2, "here")


@pytest.mark.parametrize("schema", ["1", 1.0, True, [1]])
def test_a_schema_that_is_no_whole_number_raises_an_error(schema):
    with pytest.raises(SchemaError, match="expected a whole number"):
        migrated({"schema": schema}, {}, 1, "here")


def test_a_run_without_a_schema_is_read_and_continued(run):
    now = Store(run).run()
    edit(run / "run.json", schema=None, versions=None, diagnostics=None)
    assert "schema" not in json.loads((run / "run.json").read_text())
    assert Store(run).run() == {**now, "versions": {}, "diagnostics": []}
    run_spec(spec(n=8, attacks=ATTACKS[:1]), run, executor=Serial())
    assert json.loads((run / "run.json").read_text())["schema"] == 2


def test_a_run_of_a_newer_version_is_rejected_and_not_changed(run):
    edit(run / "run.json", schema=99)
    before = (run / "run.json").read_bytes()
    with pytest.raises(StoreError, match=r"schema 99.*up to 2.*Update saddlepoint"):
        run_spec(spec(n=8, attacks=ATTACKS[:1]), run, executor=Serial())
    assert (run / "run.json").read_bytes() == before


def test_a_damaged_run_json_raises_an_error_and_is_replaced_by_the_next_run(run):
    for text in ("{", "[]"):
        (run / "run.json").write_text(text)
        with pytest.raises(StoreError, match=r"is damaged .* finished cells are kept"):
            Store(run).run()
    run_spec(spec(n=8, attacks=ATTACKS[:1]), run, executor=Serial())
    assert Store(run).run()["schema"] == 2


@pytest.mark.parametrize(
    ("schema", "message"), [(99, "Update saddlepoint"), (0, "cannot be brought to 1")]
)
def test_a_cell_of_an_unknown_schema_raises_an_error(run, schema, message):
    store = Store(run)
    key = store.keys()[0]
    record = {name: value for name, value in store.record(key).items() if name != "seal"}
    (run / "cells" / f"{key}.json").write_bytes(packed_cell.sealed({**record, "schema": schema}))
    with pytest.raises(StoreError, match=message):
        store.get(key)


def test_cells_without_loss_curves_are_read_and_not_computed_again(run):
    store = Store(run)
    for key in store.keys():  # noqa: SIM118
        tensors = load((run / "cells" / f"{key}.safetensors").read_bytes())
        del tensors["loss_curve"]
        record = {name: value for name, value in store.record(key).items() if name != "seal"}
        (run / "cells" / f"{key}.safetensors").write_bytes(save(tensors))
        old = {**record, "schema": 1, "tensors": sha256_hex(save(tensors))}
        (run / "cells" / f"{key}.json").write_bytes(packed_cell.sealed(old))
    before = content(run)
    now = Audit.load(run)
    executor = CountingExecutor()
    again = run_spec(spec(n=8, attacks=ATTACKS[:1]), run, executor=executor)
    assert executor.attacks == []
    assert content(run) == before
    assert now.rows[0].loss_curve != again.rows[0].loss_curve == LossCurve()
    assert again.robust_accuracy == now.robust_accuracy


def test_an_audit_record_without_loss_curves_is_read(run):
    record = json.loads((run / "audit.json").read_text())
    for row in record["rows"]:
        del row["loss_curve"]
        del row["minimum_norm"]
    edit(run / "audit.json", schema=1, rows=record["rows"], run=None)
    old = Audit.load(run)
    assert old.rows[0].loss_curve == LossCurve()
    assert old.run == ""


def row_of_schema_3(row):
    """A row of the table of attacks with the names of schema 3."""
    columns = {"misclassified": "fooled"}
    curve = {columns.get(name, name): column for name, column in row["loss_curve"].items()}
    others = {n: value for n, value in row.items() if n not in ("loss_curve", "minimum_norm")}
    return {**others, "ascent": curve}


def test_an_audit_record_without_a_checklist_is_read_and_is_inconclusive(run):
    now = Audit.load(run)
    record = json.loads((run / "audit.json").read_text())
    interval = {name: value for name, value in record["interval"].items() if name != "covers"}
    symptoms = [
        {name: value for name, value in s.items() if name not in ("remedy", "trait")}
        for s in record["symptoms"]
    ]
    rows = [row_of_schema_3(row) for row in record["rows"]]
    old = {"schema": 2, "verdict": "upper bound", "interval": interval, "symptoms": symptoms}
    edit(run / "audit.json", **old, rows=rows, checklist=None, compared=None, reasons=None)
    found = Audit.load(run)
    assert found.rows == now.rows
    assert found.checklist == ()
    assert (found.verdict, found.reasons) == ("inconclusive", ("the checklist was not run.",))
    assert found.record()["schema"] == 8
    assert sp.write_report(found, run / "again.html").is_file()


def test_a_cell_with_the_key_of_another_cell_is_detected(run):
    store = Store(run)
    first, second, *_ = store.keys()
    for end in ("json", "safetensors"):
        shutil.copy(run / "cells" / f"{first}.{end}", run / "cells" / f"{second}.{end}")
    with pytest.raises(
        StoreError, match=f"{second[:12]} is damaged: it holds the record of cell {first[:12]}"
    ):
        store.get(second)


def test_an_audit_record_without_a_schema_is_read(run):
    now = Audit.load(run)
    edit(run / "audit.json", schema=None, data=None, classes=None, command=None, run=None)
    old = Audit.load(run)
    assert old.robust_accuracy == now.robust_accuracy
    assert (old.data, old.classes, old.command) == ("", (), "")


def test_an_audit_record_of_a_newer_version_is_rejected(run):
    edit(run / "audit.json", schema=99)
    with pytest.raises(SchemaError, match=r"schema 99.*Update saddlepoint"):
        Audit.load(run)
