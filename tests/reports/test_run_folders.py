"""What a folder contains about its runs, and which of its files are not used."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
import tomllib
from dataclasses import replace

import pytest
from tests.runs.runs import ATTACKS, CountingExecutor, spec

from saddlepoint.reports.run_folders import details, runs, summary
from saddlepoint.runs.cache import Interrupted
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.gc import collect_garbage
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import read
from saddlepoint.runs.store import Store, StoreError

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["saddlepoint.runs.runner"])
SMALL = spec(n=8, attacks=ATTACKS[:2])  # 4 groups x (clean + 2)
OTHER = spec(n=8, attacks=ATTACKS[1:3])
# Keys that no cell has.
DEAD, LIVING, ORPHAN, UNUSED = (64 * digit for digit in "0123")


class Stopping(Serial):
    """A serial executor that is interrupted after the third cell."""

    def run(self, work, spec, cells):
        for k, packed in enumerate(super().run(work, spec, cells)):
            if k == 2:
                signal.raise_signal(signal.SIGINT)
            yield packed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    return out, run_spec(SMALL, out, executor=Serial())


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "run")


def test_the_summary_of_a_finished_run(finished):
    folder, audit = finished
    one = summary(folder)
    assert (one.done, one.total, one.finished) == (12, 12, True)
    assert one.robust_accuracy == audit.robust_accuracy
    assert one.verdict == audit.verdict
    assert (one.target, one.threat, one.examples) == (SMALL.target, "Linf 0.05", 8)


def test_an_interrupted_run_has_no_accuracy(tmp_path):
    with pytest.raises(Interrupted):
        run_spec(SMALL, tmp_path, executor=Stopping())
    one = summary(tmp_path)
    assert (one.done, one.total, one.finished) == (3, 12, False)
    assert one.robust_accuracy is None


def test_the_accuracy_of_an_earlier_request_is_not_shown_for_the_current_one(run):
    with pytest.raises(Interrupted):
        run_spec(spec("flipped", n=8, attacks=ATTACKS[:2]), run, executor=Stopping())
    assert (run / "audit.json").is_file()  # of the first request
    one = summary(run)
    assert one.target.endswith(":flipped")
    assert not one.finished
    assert one.robust_accuracy is None
    found = details(run)
    assert found.foreign == 12
    requests = [event["target"] for event in found.events if event["event"] == "requested"]
    assert [target.rpartition(":")[2] for target in requests] == ["linear", "flipped"]
    run_spec(SMALL, run, executor=Serial())  # and back: everything is there
    assert summary(run).finished


def test_another_target_in_the_folder_is_reported_and_the_same_one_is_not(run):
    class Recorder:
        def __init__(self):
            self.messages = []

        def begin(self, work, missing): ...

        def cell(self, cell, episode): ...

        def measure(self, missing): ...

        def measured(self, cell): ...

        def say(self, message):
            self.messages.append(message)

    again = Recorder()
    other = Recorder()
    run_spec(SMALL, run, executor=Serial(), watch=again)
    assert again.messages == []
    run_spec(spec("flipped", n=8, attacks=ATTACKS[:2]), run, executor=Serial(), watch=other)
    assert "held an audit of" in other.messages[0]
    assert "Use another --out to keep both" in other.messages[0]


def test_runs_are_found_below_a_folder_and_unreadable_ones_have_a_reason(run, tmp_path):
    shutil.copytree(run, tmp_path / "deep" / "er" / "two")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    found = {one.folder.rpartition("/")[2]: one for one in runs(tmp_path)}
    assert set(found) == {"run", "two", "bad"}
    assert "is damaged" in found["bad"].problem
    with pytest.raises(StoreError, match="there is no folder"):
        runs(tmp_path / "nowhere")


def test_details_contain_specification_cells_and_timing(run):
    found = details(run)
    (run / "copy.toml").write_text(found.spec)
    assert read(run / "copy.toml") == read(run / "spec.toml") == SMALL
    assert {cell.state for cell in found.cells} == {"done"}
    assert sum(cell.bytes for cell in found.cells) == sum(
        p.stat().st_size for p in (run / "cells").iterdir()
    )
    assert set(found.timing) == {"clean", "apgd-0", "apgd-1"}
    assert {"re-evaluation", "single-step attack", "unbounded attack"} <= set(found.diagnostics)
    assert all(seconds > 0 for seconds in found.diagnostics.values())
    json.dumps(found.events)
    damaged = found.cells[0].key
    (run / "cells" / f"{damaged}.json").write_text("{}")
    (run / "cells" / f"{found.cells[1].key}.json").unlink()
    states = [cell.state for cell in details(run).cells]
    assert sorted(states)[:2] == ["damaged", "done"]
    assert states.count("missing") == 1


def test_a_run_of_an_old_version_is_summarized_and_shown(run):
    record = json.loads((run / "run.json").read_text())
    now = record["spec"]["threat"]
    threat = {
        "norm": now["norm"],
        "eps": now["radius"],
        "access": now["access"],
        "coins": "public",
        "leaking": False,
        "control": 0.5,
        "live": False,
    }
    old = {**record["spec"], "schema_version": 1, "threat": threat}
    (run / "run.json").write_text(json.dumps({**record, "spec": old, "passed": old}))
    one = summary(run)
    assert (one.threat, one.finished) == ("Linf 0.05", True)
    shown = tomllib.loads(details(run).spec)
    assert shown["schema_version"] == 2
    expected = {
        "radius": "0.05",
        "randomness": "public",
        "state_visible": False,
        "controlled_fraction": 0.5,
        "online_queries": False,
    }
    assert expected.items() <= shown["threat"].items()


def total_size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_files_that_the_current_request_does_not_use_are_removed_and_no_others(run):
    before = {path.name for path in (run / "cells").iterdir()}
    run_spec(OTHER, run, executor=Serial())  # shares the clean images and one attack
    (run / "cells" / f".{DEAD}.json.4242").write_bytes(b"incomplete")
    (run / ".audit.json.999999999").write_bytes(b"incomplete")
    (run / ".hidden.file").write_bytes(b"the user's")
    (run / "cells" / f"{ORPHAN}.safetensors").write_bytes(b"without a record")
    planned = collect_garbage(run, dry_run=True)
    assert not planned.removed
    assert (planned.cells, planned.incomplete) == (4, 3)
    assert planned.diagnostics > 0
    size = total_size(run)
    done = collect_garbage(run)
    assert replace(done, removed=False) == planned
    assert total_size(run) == size - done.bytes
    assert (run / ".hidden.file").exists()
    assert Store(run).keys() == Store(run).run()["cells"]
    assert Store(run / "diagnostics").keys() == Store(run).run()["diagnostics"]
    assert summary(run).finished
    assert collect_garbage(run).bytes == 0
    run_spec(SMALL, run, executor=Serial())
    assert before <= {path.name for path in (run / "cells").iterdir()}


def test_cleaning_up_a_finished_run_keeps_its_diagnostics(run):
    before = Store(run / "diagnostics").keys()
    freed = collect_garbage(run)
    assert (freed.cells, freed.diagnostics) == (0, 0)
    assert Store(run / "diagnostics").keys() == before
    executor = CountingExecutor()
    run_spec(SMALL, run, executor=executor)
    assert executor.computed == []


def test_diagnostics_of_another_request_and_their_incomplete_files_are_removed(run):
    used = Store(run).run()["diagnostics"]
    diagnostics = Store(run / "diagnostics")
    source = diagnostics.cells / used[0]
    for end in (".json", ".safetensors"):
        shutil.copy(source.with_suffix(end), diagnostics.cells / f"{UNUSED}{end}")
    (diagnostics.cells / f".{DEAD}.json.4242").write_bytes(b"incomplete")
    (diagnostics.cells / f"{ORPHAN}.safetensors").write_bytes(b"without a record")
    freed = collect_garbage(run)
    assert (freed.cells, freed.diagnostics, freed.incomplete) == (0, 1, 2)
    assert diagnostics.keys() == used
    assert len(list(diagnostics.cells.iterdir())) == 2 * len(used)


def test_trials_of_earlier_versions_are_removed(run):
    shutil.copytree(run / "diagnostics", run / "trials")
    count = len(Store(run / "trials").keys())
    assert collect_garbage(run, dry_run=True).diagnostics == count
    assert collect_garbage(run).diagnostics == count
    assert list((run / "trials" / "cells").iterdir()) == []
    assert len(Store(run / "diagnostics").keys()) == count


@pytest.mark.parametrize("store", ["diagnostics", "trials"])
def test_a_run_is_not_cleaned_up_while_a_diagnostic_is_computed(run, store):
    with (
        Store(run / store).claim(LIVING),
        pytest.raises(StoreError, match=r"1 cell .* is being computed"),
    ):
        collect_garbage(run)


def test_a_run_that_is_being_computed_is_not_cleaned_up(run):
    process = FORK.Process(target=hold, args=(run, LIVING))
    process.start()
    while not (run / "held").exists():
        time.sleep(0.01)
    with pytest.raises(StoreError, match="being computed"):
        collect_garbage(run)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    collect_garbage(run)


def test_incomplete_files_of_a_killed_process_are_removed_and_those_of_a_running_one_are_not(run):
    (run / "cells" / f".{DEAD}.json.4242").write_bytes(b"incomplete")
    (run / "cells" / f".{LIVING}.json.4242").write_bytes(b"being written")
    with Store(run).claim(LIVING) as claimed:
        assert claimed
        run_spec(SMALL, run, executor=Serial())
        assert [path.name for path in (run / "cells").glob(".*")] == [f".{LIVING}.json.4242"]


def test_a_lock_that_was_deleted_is_not_acquired(tmp_path, monkeypatch):
    import fcntl

    real = fcntl.flock
    lock = tmp_path / "locks" / "cell"

    def delete_then_lock(file, operation):
        lock.unlink()  # between opening and locking
        real(file, operation)

    monkeypatch.setattr("saddlepoint.runs.locks.fcntl.flock", delete_then_lock)
    with Store(tmp_path).claim("cell") as claimed:
        assert not claimed


def hold(folder, key):
    with Store(folder).claim(key):
        (folder / "held").touch()
        time.sleep(60)
