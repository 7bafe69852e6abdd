"""Runs of two rounds: symptoms of the first round lead to remedies in the second round."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.runs.runs import TARGETS, CountingExecutor, content, record_without_times

from saddlepoint.audits import Audit
from saddlepoint.audits.diagnostics.attack_trials import OneStep, StaticQueries, WatchAttack
from saddlepoint.audits.profile import Stage
from saddlepoint.phrases import count
from saddlepoint.reports.html import write_report
from saddlepoint.reports.live import LivePage
from saddlepoint.reports.run_folders import summary
from saddlepoint.runs import verify_record, work
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.hashing import measurement_key
from saddlepoint.runs.progress import ProgressBar
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.verify import checks
from saddlepoint.runs.watches import Watches

SPEC = RunSpec(
    target=f"{TARGETS}:rippled", data=DataSpec(n=8), threat=ThreatSpec(eps="0.02"), batch_size=4
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run: its folder, its executor, and the log of its progress."""
    out = tmp_path_factory.mktemp("finished") / "run"
    executor = CountingExecutor()
    log = StringIO()
    with LivePage(out) as page, ProgressBar(Console(file=log, width=1000), folder=out) as bar:
        audit = run_spec(SPEC, out, executor=executor, watch=Watches((bar, page)))
        write_report(audit, out / "report.html")
    return out, executor, log.getvalue()


def remedy_cells(executor):
    """Attack cells of the second round."""
    before = set(executor.works[0].keys)
    return [cell for cell in executor.works[-1].keys if cell not in before]


def test_remedies_are_in_the_record_in_the_run_and_on_the_page(finished):
    out, executor, _ = finished
    names = [choice.name for choice in executor.works[-1].remedies]
    assert names
    record = Audit.load(out)
    assert [row.name for row in record.rows[-len(names) :]] == names
    run = Store(out).run()
    assert [each["name"] for each in run["adversaries"][-len(names) :]] == names
    for remedy in executor.works[-1].remedies:
        assert run["reasons"][remedy.name] == remedy.reason
    assert sorted(run["cells"]) == sorted(executor.works[-1].keys.values())
    assert summary(out).finished
    assert all(names[0] in (out / page).read_text() for page in ("live.html", "report.html"))
    assert run["reasons"][names[0]][:20] in (out / "report.html").read_text()


def test_remedies_are_logged_with_reason_and_cost_and_counted_with_the_first_cells(finished):
    _, executor, log = finished
    total = len(executor.works[-1].keys)
    for remedy in executor.works[-1].remedies:
        cost = f"at most {count(remedy.passes, 'pass')} per remaining image"
        assert f"Remedy: {remedy.name} ({cost}): {remedy.reason}." in log
    assert f"{total} of {total} cells" in log
    assert "finished already" not in log


def test_a_log_names_all_stages_and_the_second_attack_and_diagnosis(finished):
    _, _, log = finished
    named = [line.split(":")[0] for line in log.splitlines()]
    stages = [name for name in named if name in list(Stage)]
    once = [name for k, name in enumerate(stages) if k == 0 or stages[k - 1] != name]
    second_round = ["attack", "diagnose", "remedy", "attack", "diagnose", "conclude"]
    assert once == ["probe", "plan", *second_round]
    last = log.splitlines()[-1]
    assert last.startswith("Wall-clock time by stage, with loading and waiting: probe ")
    six = set(Stage) - {Stage.STORE, Stage.REPORT}
    assert all(f"{stage} " in last for stage in six)


def test_a_resumed_run_chooses_the_same_remedies_and_computes_missing_cells_only(
    finished, tmp_path
):
    out, executor, _ = finished
    folder = shutil.copytree(out, tmp_path / "run")
    again = CountingExecutor()
    lost = [executor.works[-1].keys[cell] for cell in (remedy_cells(executor)[0], (0, 1))]
    Store(folder).remove(
        [Store(folder).cells / f"{key}{end}" for key in lost for end in (".json", ".safetensors")]
    )
    run_spec(SPEC, folder, executor=again)
    assert sorted(again.attacks) == sorted(lost)
    assert again.measurements == []
    assert content(folder) == content(out)


def test_a_worker_with_specification_and_remedies_computes_the_same_bytes(finished):
    _, executor, _ = finished
    remedies = pickle.loads(pickle.dumps(executor.works[-1].remedies))
    work.load.cache_clear()
    cell = remedy_cells(executor)[-1]
    computed = work.load_for(SPEC.model_dump_json(), [cell], remedies).compute(cell)
    key = executor.works[-1].keys[cell]
    expected = next(packed for packed in executor.computed if packed.key == key)
    assert replace(computed, seconds=0.0) == replace(expected, seconds=0.0)


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes_of_both_rounds(finished, tmp_path):
    out, _, _ = finished
    run_spec(SPEC, tmp_path / "run", executor=Processes(workers=2))
    assert content(tmp_path / "run") == content(out)
    assert record_without_times(tmp_path / "run") == record_without_times(out)


def test_verification_derives_remedies_and_reports_those_that_were_removed(finished, tmp_path):
    out, executor, _ = finished
    work.load.cache_clear()
    assert all(check.passed for check in checks(Store(out)))
    folder = shutil.copytree(out, tmp_path / "run")
    dropped = {executor.works[-1].keys[cell] for cell in remedy_cells(executor)}
    run = Store(folder).run()
    run["cells"] = sorted(set(run["cells"]) - dropped)
    (folder / "run.json").write_text(json.dumps(run))
    store = Store(folder)
    store.remove(
        [store.cells / f"{key}{end}" for key in dropped for end in (".json", ".safetensors")]
    )
    record = json.loads((folder / "audit.json").read_text())
    (folder / "audit.json").write_text(json.dumps({**record, "run": identity(run)}))
    failed = {check.name: check.message for check in checks(store) if not check.passed}
    assert "lead to other remedies" in failed["remedies"]


def test_a_repeated_request_reads_diagnostics_and_computes_damaged_ones_again(finished, tmp_path):
    out, first, _ = finished
    folder = shutil.copytree(out, tmp_path / "run")
    diagnostics = Store(folder / "diagnostics")
    assert sorted(first.measurements) == diagnostics.keys()
    repeated = CountingExecutor()
    run_spec(SPEC, folder, executor=repeated)
    assert repeated.computed == []
    damaged = diagnostics.keys()[0]
    tensors = diagnostics.cells / f"{damaged}.safetensors"
    tensors.write_bytes(b"damaged")
    run_spec(SPEC, folder, executor=repeated)
    assert repeated.measurements == [damaged]
    assert repeated.attacks == []
    assert content(folder) == content(out)


def test_lost_diagnostics_are_computed_again(finished, tmp_path):
    out, first, _ = finished
    folder = shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(folder / "diagnostics")
    again = CountingExecutor()
    run_spec(SPEC, folder, executor=again)
    assert sorted(again.measurements) == sorted(first.measurements)
    assert again.attacks == []
    assert content(folder) == content(out)
    assert record_without_times(folder) == record_without_times(out)


def test_an_audit_stopped_during_diagnostics_continues_with_the_next_one(
    finished, tmp_path, monkeypatch
):
    out, first, _ = finished
    folder = shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(folder / "diagnostics")
    put = Store.put
    stored = []

    def put_once(store, packed):
        if stored:
            raise KeyboardInterrupt
        stored.append(packed.key)
        put(store, packed)

    monkeypatch.setattr(Store, "put", put_once)
    with pytest.raises(KeyboardInterrupt):
        run_spec(SPEC, folder, executor=Serial())
    monkeypatch.setattr(Store, "put", put)
    assert Store(folder / "diagnostics").keys() == stored
    resumed = CountingExecutor()
    run_spec(SPEC, folder, executor=resumed)
    assert sorted([*resumed.measurements, *stored]) == sorted(first.measurements)
    assert content(folder) == content(out)


def test_verification_computes_diagnostics_again_and_finds_changed_ones(
    finished, tmp_path, monkeypatch
):
    out, first, _ = finished
    folder = shutil.copytree(out, tmp_path / "run")
    for path in (folder / "diagnostics" / "cells").iterdir():
        path.write_bytes(b"something else")
    computed = set()
    measurements = verify_record.StoredCells.measurements

    def count(execution, plan, cells):
        computed.update(execution.work.key(cell) for cell in cells)
        return measurements(execution, plan, cells)

    monkeypatch.setattr(verify_record.StoredCells, "measurements", count)
    work.load.cache_clear()
    failed = [check.name for check in list(checks(Store(folder))) if not check.passed]
    assert failed == ["manifest", "diagnostics"]
    assert computed == set(first.measurements)
    files = list((folder / "diagnostics" / "cells").iterdir())
    assert len(files) == 2 * len(computed)
    assert all(path.read_bytes() == b"something else" for path in files)


def test_different_measurements_have_different_keys():
    loaded = work.load(SPEC)
    job = loaded.plan.job
    clean, attack, *_ = loaded.plan.adversaries
    rows = job.groups[0]

    def key(job, measurement, target="target"):
        return measurement_key(job, measurement, target, threads=1)

    first = key(job, OneStep(attack, rows))
    assert key(job, OneStep(attack, rows.clone())) == first
    others = [
        key(job, OneStep(attack, rows), "another target"),
        key(replace(job, seed=1), OneStep(attack, rows)),
        key(replace(job, threat=replace(job.threat, draws=7)), OneStep(attack, rows)),
        key(job, OneStep(clean, rows)),
        key(job, OneStep(attack, rows[:1])),
        # Another diagnostic with the same adversary on the same rows.
        key(job, WatchAttack(attack, rows)),
        # The static net inside a defense, under the same adversary on the same rows.
        key(job, StaticQueries((attack,), rows)),
    ]
    assert len({first, *others}) == 8
