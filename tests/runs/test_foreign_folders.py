"""Folders from elsewhere: links are refused, and only the store's own files are removed."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from tests.cli.commands import call, error_of
from tests.runs.runs import ATTACKS, spec

from saddlepoint.runs import hashing, packed_cell, store, verify, work
from saddlepoint.runs.cache import DiskCache
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.gc import collect_garbage
from saddlepoint.runs.own_files import DIAGNOSTICS
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import NewerError, Store, StoreError
from saddlepoint.runs.verify import checks

SMALL = spec(n=8, attacks=ATTACKS[:1])
KEY = 64 * "a"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    run_spec(SMALL, out, executor=Serial())
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.parametrize("place", ["cells", "locks", "trials", "trials/cells", "diagnostics/locks"])
def test_a_folder_with_a_link_is_refused_and_nothing_outside_is_removed(run, tmp_path, place):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in (f"{KEY}.json", f"{KEY}.safetensors", f".{KEY}.json.77", KEY, "thesis.tex"):
        (outside / name).write_text("precious")
    (run / place).parent.mkdir(exist_ok=True)
    shutil.rmtree(run / place, ignore_errors=True)
    (run / place).symlink_to(outside)
    with pytest.raises(StoreError, match=f"{place} is a link"):
        collect_garbage(run)
    with pytest.raises(StoreError, match="is a link"):
        run_spec(SMALL, run, executor=Serial())
    assert "is a link" in error_of("runs", "gc", run)
    assert len(list(outside.iterdir())) == 5


@pytest.mark.parametrize("name", ["ledger.jsonl", f"locks/{KEY}"])
def test_a_pipe_is_refused_since_a_command_would_wait_for_it_forever(run, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(StoreError, match="is a pipe"):
        Store(run).opened()


@pytest.mark.parametrize("name", ["ledger.jsonl", "audit.json", "run.json"])
def test_a_record_that_is_a_link_is_refused(run, tmp_path, name):
    (run / name).rename(tmp_path / name)
    (run / name).symlink_to(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(StoreError, match="is a link"):
        run_spec(SMALL, run, executor=Serial())
    assert (tmp_path / name).read_bytes() == before
    assert "is a link" in call("runs", "list", run.parent).stdout


def test_only_names_of_the_stores_own_form_are_removed(run):
    kept = ["notes.json", "thesis.safetensors", ".notes.json.12", f"{KEY[:-1]}.json", f"{KEY}.txt"]
    for name in kept:
        (run / "cells" / name).write_text("the user's")
    (run / "locks" / "mine").write_text("the user's")
    for name in (f"{KEY}.json", f"{KEY}.safetensors", f".{KEY}.json.12"):
        (run / "cells" / name).write_text("unused")
    planned = collect_garbage(run, dry_run=True)
    assert (planned.cells, planned.incomplete) == (1, 1)
    assert f"cells/{KEY}.json" in planned.files
    done = collect_garbage(run)
    assert done.files == planned.files
    assert all((run / "cells" / name).exists() for name in kept)
    assert (run / "locks" / "mine").exists()
    assert not any((run / name).exists() for name in done.files)


def test_a_dry_run_prints_every_file_that_would_be_removed(run):
    (run / "cells" / f"{KEY}.json").write_text("unused")
    printed = call("runs", "gc", run, "--dry-run").stdout
    assert f"  cells/{KEY}.json\n" in printed
    assert (run / "cells" / f"{KEY}.json").exists()


def test_a_cell_of_a_newer_version_is_refused_and_not_removed(run):
    folder = Store(run)
    key = folder.keys()[0]
    record = {name: value for name, value in folder.record(key).items() if name != "seal"}
    path = run / "cells" / f"{key}.json"
    path.write_bytes(packed_cell.sealed({**record, "schema": 99}))
    with pytest.raises(NewerError, match="Update saddlepoint"):
        DiskCache(folder, None).has(key)
    with pytest.raises(NewerError):
        run_spec(SMALL, run, executor=Serial())
    assert path.exists()


OTHER = {"saddlepoint": "0.1.7", "torch": "2.4.0"}


def test_a_run_of_another_version_is_verified_by_its_outcomes(tmp_path, monkeypatch):
    work.load.cache_clear()
    with monkeypatch.context() as patched:
        for module in (hashing, store, verify):
            patched.setattr(module, "versions", lambda: OTHER)
        run_spec(SMALL, tmp_path, executor=Serial())
    work.load.cache_clear()
    found = {check.name: check for check in checks(Store(tmp_path))}
    assert all(check.passed for check in found.values()), found
    assert "saddlepoint 0.1.7 and torch 2.4.0 wrote this run." in found["version"].message
    assert {"inside", "answers", "accuracy", "outcomes"} <= found.keys()
    record = json.loads((tmp_path / "audit.json").read_text())
    (tmp_path / "audit.json").write_text(json.dumps({**record, "clean_accuracy": 0.99}))
    found = {check.name: check for check in checks(Store(tmp_path))}
    assert "clean_accuracy: recorded 0.99, recomputed" in found["outcomes"].message
    assert not found["outcomes"].passed


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(run, monkeypatch):
    real = store.reject_links

    def unreadable(folder):
        if folder.name == "locked":
            raise PermissionError(13, "Permission denied")
        real(folder)

    shutil.copytree(run, run.parent / "locked")
    monkeypatch.setattr(store, "reject_links", unreadable)
    result = call("runs", "list", run.parent)
    assert result.exit_code == 0, result.output
    assert "finished" in result.stdout
    assert "cannot be read (Permission denied)" in result.stdout


def test_control_characters_of_a_foreign_record_are_not_printed(run):
    record = json.loads((run / "run.json").read_text())
    record["target"]["name"] = "\x1b]0;owned\x07\x1b[2J"
    (run / "run.json").write_text(json.dumps(record))
    for words in (("list", run.parent), ("show", run)):
        printed = call("runs", *words)
        assert printed.exit_code == 0, printed.output
        assert "\x1b" not in printed.output
        assert "\\x1b[2J" in printed.output


def test_a_listed_verdict_is_computed_and_the_files_are_compared_with_the_manifest(run):
    record = json.loads((run / "audit.json").read_text())
    assert record["verdict"] != "credible"
    (run / "audit.json").write_text(json.dumps({**record, "verdict": "credible"}))
    printed = call("runs", "list", run.parent).stdout
    assert "credible" not in printed
    assert "changed: audit.json" in printed
    assert "Nothing here is verified" in printed


def test_the_cells_of_diagnostics_are_part_of_the_manifest(run):
    files = json.loads((run / "manifest.json").read_text())["files"]
    keys = Store(run / DIAGNOSTICS).keys()
    stored = [f"{DIAGNOSTICS}/cells/{key}.json" for key in keys]
    assert stored
    assert set(stored) <= files.keys()
