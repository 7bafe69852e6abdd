"""Runs of two rounds: what the first shows decides the second, for whoever computes, resumes or verifies it."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.runs.runs import TARGETS, content
from torch import nn

from saddlepoint.audits import Audit
from saddlepoint.audits import cells as cell
from saddlepoint.cli.progress import ProgressBar
from saddlepoint.defenses import Plain
from saddlepoint.reports.live import LivePage, WatchPair
from saddlepoint.reports.run_folders import summary
from saddlepoint.runs import work
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.verify import checks

SPEC = RunSpec(
    target=f"{TARGETS}:trembling", data=DataSpec(n=8), threat=ThreatSpec(eps="0.02"), batch_size=4
)


class Counting(Serial):
    """The serial executor, with a list of what it computed and of the last work it was handed."""

    def __init__(self):
        object.__setattr__(self, "computed", [])
        object.__setattr__(self, "works", [])

    def run(self, work, spec, cells):
        self.works.append(work)
        for packed in super().run(work, spec, cells):
            self.computed.append(packed)
            yield packed


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The run, uninterrupted, who computed it, and what was said meanwhile."""
    out = tmp_path_factory.mktemp("made") / "run"
    executor = Counting()
    said = StringIO()
    with LivePage(out) as page, ProgressBar(Console(file=said, width=1000), folder=out) as bar:
        run_spec(SPEC, out, executor=executor, watch=WatchPair(bar, page))
    return out, executor, said.getvalue()


def remedied(executor):
    """Cells of the second round."""
    before = set(executor.works[0].keys)
    return [cell for cell in executor.works[-1].keys if cell not in before]


def test_remedies_are_in_the_record_in_the_run_and_on_the_page(made):
    out, executor, _ = made
    names = [choice.name for choice in executor.works[-1].remedies]
    assert names
    record = Audit.load(out)
    assert [row.name for row in record.rows[-len(names) :]] == names
    run = Store(out).run()
    assert [sent["name"] for sent in run["adversaries"][-len(names) :]] == names
    assert all("so " in run["reasons"][name] for name in names)
    assert sorted(run["cells"]) == sorted(executor.works[-1].keys.values())
    assert summary(out).finished
    assert all(names[0] in (out / page).read_text() for page in ("live.html", "report.html"))
    assert run["reasons"][names[0]][:20] in (out / "report.html").read_text()


def test_remedies_are_announced_with_reason_and_price_and_counted_with_the_cells_before_them(made):
    _, executor, said = made
    total = len(executor.works[-1].keys)
    for remedy in executor.works[-1].remedies:
        assert (
            f"Remedy: {remedy.name} (at most {remedy.passes} passes per image that stands): {remedy.reason}."
            in said
        )
    assert f"{total} of {total} cells" in said
    assert "finished already" not in said


def test_a_run_that_is_resumed_asks_for_the_same_remedies_and_computes_what_is_missing(
    made, tmp_path
):
    out, executor, _ = made
    folder = shutil.copytree(out, tmp_path / "run")
    again = Counting()
    lost = [executor.works[-1].keys[cell] for cell in (remedied(executor)[0], (0, 1))]
    Store(folder).remove(
        [Store(folder).cells / f"{key}{end}" for key in lost for end in (".json", ".safetensors")]
    )
    run_spec(SPEC, folder, executor=again)
    assert sorted(packed.key for packed in again.computed) == sorted(lost)
    assert content(folder) == content(out)


def test_a_worker_that_has_only_the_specification_and_the_remedies_computes_the_same_bytes(made):
    _, executor, _ = made
    sent = pickle.loads(pickle.dumps(executor.works[-1].remedies))
    work.load.cache_clear()
    cell = remedied(executor)[-1]
    computed = work.compute(SPEC.model_dump_json(), cell, sent)
    ours = next(
        packed for packed in executor.computed if packed.key == executor.works[-1].keys[cell]
    )
    assert (computed.key, computed.record, computed.tensors) == (
        ours.key,
        ours.record,
        ours.tensors,
    )


def test_verification_derives_the_remedies_and_misses_one_that_was_taken_out(made, tmp_path):
    out, executor, _ = made
    work.load.cache_clear()
    assert all(check.passed for check in checks(Store(out)))
    folder = shutil.copytree(out, tmp_path / "run")
    dropped = {executor.works[-1].keys[cell] for cell in remedied(executor)}
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
    assert "calls for other remedies" in failed["remedies"]


@pytest.fixture
def played(monkeypatch):
    """Names of all adversaries that are played, in cells and in trials; verdicts on given points left out."""
    names = []
    play = cell.play

    def counted(defense, adversary, *about, **more):
        names.extend([adversary.name] * (adversary.name != "verdict"))
        return play(defense, adversary, *about, **more)

    monkeypatch.setattr(cell, "play", counted)
    return names


def test_trials_of_a_run_that_is_asked_for_again_are_found_and_only_damaged_ones_are_played(
    made, tmp_path, played
):
    out, *_ = made
    folder = shutil.copytree(out, tmp_path / "run")
    trials = Store(folder / "trials")
    assert trials.keys()
    run_spec(SPEC, folder, executor=Serial())
    spied = list(played)
    assert content(folder) == content(out)
    victim = trials.keys()[0]
    name = trials.get(victim).adversary
    whole = (trials.cells / f"{victim}.safetensors").read_bytes()
    (trials.cells / f"{victim}.safetensors").write_bytes(b"damaged")
    played.clear()
    run_spec(SPEC, folder, executor=Serial())
    assert sorted(played) == sorted([*spied, name])
    assert (trials.cells / f"{victim}.safetensors").read_bytes() == whole
    shutil.rmtree(folder / "trials")
    played.clear()
    run_spec(SPEC, folder, executor=Serial())
    assert len(played) == len(spied) + len(Store(out / "trials").keys())
    assert Audit.load(folder).record()["checklist"] == Audit.load(out).record()["checklist"]


def test_an_audit_that_is_stopped_among_its_trials_goes_on_with_the_next(
    made, tmp_path, monkeypatch
):
    out, *_ = made
    folder = shutil.copytree(out, tmp_path / "run")
    shutil.rmtree(folder / "trials")
    put = Store.put
    kept = []

    def once(store, packed):
        if kept:
            raise KeyboardInterrupt
        kept.append(packed.key)
        put(store, packed)

    monkeypatch.setattr(Store, "put", once)
    with pytest.raises(KeyboardInterrupt):
        run_spec(SPEC, folder, executor=Serial())
    monkeypatch.setattr(Store, "put", put)
    assert Store(folder / "trials").keys() == kept
    run_spec(SPEC, folder, executor=Serial())
    assert set(Store(folder / "trials").keys()) == set(Store(out / "trials").keys())


def test_whoever_verifies_plays_the_trials_again(made, tmp_path, played):
    out, *_ = made
    folder = shutil.copytree(out, tmp_path / "run")
    for path in (folder / "trials" / "cells").iterdir():
        path.write_bytes(b"whatever somebody put here")
    work.load.cache_clear()
    assert all(check.passed for check in checks(Store(folder)))
    assert len(played) >= len(Store(out / "trials").keys())
    left = [path.read_bytes() for path in (folder / "trials" / "cells").iterdir()]
    assert left == [b"whatever somebody put here"] * 2 * len(
        Store(out / "trials").keys()
    )  # nobody looked


def test_trials_of_another_part_of_the_target_have_another_name():
    """The net inside a purifier may meet the very adversary, on the very rows, that the purifier met."""
    asked = work.load(SPEC)
    job = asked.plan.job
    sent = asked.plan.adversaries[1]
    rows = asked.plan.job.groups[0]
    assert asked.trial(job, sent, rows) == asked.trial(job, sent, rows)
    others = [
        asked.trial(replace(job, defense=Plain(nn.Flatten())), sent, rows),
        asked.trial(replace(job, seed=1), sent, rows),
        asked.trial(replace(job, threat=replace(job.threat, draws=7)), sent, rows),
        asked.trial(job, asked.plan.adversaries[0], rows),
        asked.trial(job, sent, rows[:1]),
    ]
    assert len({asked.trial(job, sent, rows), *others}) == 6
