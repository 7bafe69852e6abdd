"""Failures around an audit: the message, the exit code, and that finished cells are kept."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cli.commands import QUICK, START, TARGETS, call, error_of

from saddlepoint.audits.profile import Stage
from saddlepoint.reports.run_folders import summary
from saddlepoint.runs.spec import read
from saddlepoint.runs.store import Store


def start(*words: str) -> subprocess.Popen:
    """Run `saddlepoint` with these words, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", START, *words], stdout=pipe, stderr=pipe, text=True, env=environment
    )


def test_attacks_are_run_by_name_and_are_part_of_the_command():
    result = call(
        "audit", f"{TARGETS}:make", *QUICK, "--attacks", "fgsm, pgd", "--out", "here", "--json"
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [row["name"] for row in record["rows"]] == ["fgsm", "pgd"]
    again = call(*record["command"].split()[1:], "--out", "here")
    assert "3 of 3 cells are finished already" in again.stderr


@pytest.mark.parametrize(
    ("names", "message"),
    [("apgd-c", "Did you mean 'apgd-ce'?"), ("pgd,", "no attack is called ''"), ("zzz", "Known:")],
)
def test_the_error_about_an_unknown_attack_names_the_nearest(names, message):
    assert message in error_of("audit", f"{TARGETS}:make", "--attacks", names)


def test_attacks_without_an_option_are_repeated_from_the_specification():
    Path("mine.toml").write_text(
        f'target = "{TARGETS}:make"\n[data]\nn = 8\n[threat]\nradius = "0.05"\n'
        '[[attacks]]\nkind = "pgd"\nsteps = 3\n'
    )
    result = call("run", "mine.toml", "--out", "here", "--json")
    assert json.loads(result.stdout)["command"] == "saddlepoint run spec.toml"
    assert read(Path("here/spec.toml")) == read(Path("mine.toml"))


def test_a_dry_run_prints_a_specification_that_runs_and_attacks_nothing():
    result = call(
        "audit", f"{TARGETS}:make", *QUICK, "--batch-size", "10", "--out", "here", "--dry-run"
    )
    assert result.exit_code == 0, result.output
    assert "6 cells: 2 groups of images x clean, apgd-ce and apgd-dlr." in result.stderr
    assert "The quick budget runs no remedies for symptoms." in result.stderr
    assert not Path("here").exists()
    Path("spec.toml").write_text(result.stdout)
    assert call("run", "spec.toml", "--out", "here", "--quiet").exit_code == 0
    planned = json.loads(call("run", "spec.toml", "--out", "here", "--dry-run", "--json").stdout)
    assert (planned["cells"], planned["done"], planned["remedies"]) == (6, 6, 0)


def test_a_specification_of_all_images_of_a_file_still_means_all_when_it_is_read():
    np.savez("mine.npz", x=np.zeros((600, 1, 8, 8), np.float32), y=np.arange(600) % 10)
    Path("spec.toml").write_text(
        call(
            "audit", f"{TARGETS}:make", "--data", "mine.npz", "--dry-run", "--allow-unusual"
        ).stdout
    )
    assert read(Path("spec.toml")).data.n is None


def test_a_live_page_is_written_while_the_audit_runs():
    result = call("audit", f"{TARGETS}:make", *QUICK, "--out", "here", "--watch")
    assert result.exit_code == 0, result.output
    assert "saddlepoint view here" in result.stderr
    assert "<html" in Path("here/live.html").read_text()


def test_progress_shows_accuracy_robust_images_cells_passes_and_time():
    printed = call("audit", f"{TARGETS}:make", *QUICK, "--out", "here").stderr
    plan, rest = printed.partition("costs less.")[::2]
    whole, remedies, *lines = rest.strip().splitlines()
    assert "apgd-dlr" in plan  # the attacks, with reasons
    assert whole.startswith("The whole audit: at most ")
    assert remedies.startswith("The quick budget runs no remedies")
    cells = [line for line in lines if "images still robust" in line]
    assert len(cells) == 2
    assert any(re.match(r"clean: .* %, .* of 20 images classified correctly", li) for li in lines)
    assert cells[-1].startswith("apgd-dlr: ≤ ")
    assert "of 20 images still robust; 3 of 3 cells, " in cells[-1]
    assert cells[-1].endswith("passes, about 0 to come, about 0 s left")
    assert len([line for line in lines if re.fullmatch(r"single-step.*; \d+ of \d+", line)]) == 1


def test_a_log_names_the_six_stages_in_order_and_their_times():
    printed = call("audit", f"{TARGETS}:make", *QUICK, "--out", "here").stderr
    lines = printed.splitlines()
    stages = [line.partition(":")[0] for line in lines if line.partition(":")[0] in list(Stage)]
    six = [stage for stage in Stage if stage not in (Stage.STORE, Stage.REPORT)]
    assert list(dict.fromkeys(stages)) == six
    assert stages.count("attack") == 2  # attacks, then re-evaluations of worst points
    assert re.fullmatch(
        r"Wall-clock time by stage, with loading and waiting: probe [\d.]+ s, plan [\d.]+ s, "
        r"attack [\d.]+ s, diagnose [\d.]+ s, "
        r"remedy [\d.]+ s, conclude [\d.]+ s\.",
        lines[-1],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "mine.npz"), (b"<!doctype html>", "a web page"), (b"PK\3\4 half a file", "mine.npz")],
)
def test_data_that_cannot_be_read_is_explained(content, message):
    Path("mine.npz").write_bytes(content)
    assert message in error_of("audit", f"{TARGETS}:make", "--data", "mine.npz")


def test_smaller_batches_are_used_when_memory_runs_out_and_this_is_reported():
    result = call("audit", f"{TARGETS}:hungry", *QUICK)
    assert result.exit_code == 0, result.output
    assert "memory ran out: batches of 128 images were attacked in up to 2 parts" in result.stdout
    assert (
        call(
            "audit", f"{TARGETS}:hungry", *QUICK, "--batch-size", "10", "--out", "small"
        ).stdout.count("memory")
        == 0
    )


def test_too_little_memory_for_any_batch_is_a_clear_error():
    assert "memory ran out." in error_of("audit", f"{TARGETS}:starving", *QUICK)


def test_another_target_in_the_same_folder_is_reported_and_keeps_the_cells():
    assert call("audit", f"{TARGETS}:make", *QUICK, "--out", "here", "--quiet").exit_code == 0
    result = call("audit", f"{TARGETS}:defense", *QUICK, "--out", "here")
    assert result.exit_code == 0, result.output
    assert f"here held an audit of {TARGETS}:make" in result.stderr
    assert summary(Path("here")).target == f"{TARGETS}:defense"
    assert (
        "3 of 3 cells are finished already"
        in call("audit", f"{TARGETS}:make", *QUICK, "--out", "here").stderr
    )


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:9", "nothing responds at 127.0.0.1:9"),
        ("here", "HOST:PORT"),
        ("127.0.0.1:99999", "nothing"),
    ],
)
def test_a_missing_cluster_is_an_immediate_error(address, message):
    assert message in error_of("audit", f"{TARGETS}:make", *QUICK, "--quiet", "--address", address)


def test_a_folder_of_a_newer_version_is_rejected():
    Path("here").mkdir()
    Path("here/run.json").write_text('{"schema": 99}')
    assert "Update saddlepoint" in error_of("audit", f"{TARGETS}:make", *QUICK, "--out", "here")


def test_a_folder_that_cannot_be_created_is_an_error():
    assert "Choose another folder with --out" in error_of(
        "audit", f"{TARGETS}:make", *QUICK, "--out", "/proc/here"
    )


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_store_that_becomes_read_only_keeps_the_finished_cells(code, monkeypatch):
    real = Path.rename
    renamed = []

    def fail(path, target):
        renamed.append(target)
        if len(renamed) > 5:
            raise OSError(code, os.strerror(code))
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fail)
        message = error_of("audit", f"{TARGETS}:make", *QUICK, "--out", "here", "--quiet")
    reason = os.strerror(code)
    assert f"here cannot be written to ({reason}). All finished cells are kept" in message
    assert len(Store(Path("here")).keys()) >= 1
    assert not list(Path("here/cells").glob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found_before_the_attacks():
    Path("here").mkdir(mode=0o500)
    assert "Choose another folder with --out" in error_of(
        "audit", f"{TARGETS}:make", *QUICK, "--out", "here"
    )


@pytest.mark.slow
def test_an_interrupt_exits_with_130_and_one_line_and_the_same_command_continues():
    words = ["audit", f"{TARGETS}:slow", *QUICK, "--batch-size", "2", "--out", "run"]
    process = start(*words)
    ledger = Path("run/ledger.jsonl")
    deadline = time.monotonic() + 60
    while not (ledger.is_file() and ledger.read_text().count('"cell"') >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in messages
    last = messages.splitlines()[-1]
    assert "of 30 cells of this step are finished and kept. Run the same command to" in last
    finished = Store(Path("run")).keys()
    assert 2 <= len(finished) < 30
    assert not summary(Path("run")).finished
    again = call(*words)
    assert again.exit_code == 0, again.output
    assert f"{len(finished)} of 30 cells are finished already" in again.stderr
    assert summary(Path("run")).finished


@pytest.mark.slow
def test_two_commands_at_once_share_the_cells_and_both_succeed():
    words = ["audit", f"{TARGETS}:slow", *QUICK, "--batch-size", "4", "--out", "run", "--json"]
    pair = [start(*words), start(*words)]
    outputs = [process.communicate(timeout=120) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    first, second = (json.loads(output) for output, _ in outputs)
    assert first["robust_accuracy"] == second["robust_accuracy"]
    store = Store(Path("run"))
    computed = [event["key"] for event in store.events() if event["event"] == "cell"]
    assert sorted(computed) == store.keys()  # each cell once
    assert summary(Path("run")).finished
