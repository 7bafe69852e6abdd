"""`saddlepoint game`: from the command line to the report, and every mistake on the way."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.cli.commands import QUICK, TARGETS, call, error_of
from tests.cli.test_failures import start

from saddlepoint.games.runs.record import GameRecord
from saddlepoint.phrases import percent_cell
from saddlepoint.reports.run_folders import summary
from saddlepoint.runs.store import Store

SMALL = ("--n", "40", "--eps", "0.2", "--attack", "fgsm")
CELLS = 8 + 1 + 7 + 4  # building: clean, 7 rows; scoring: clean, 7 rows, 4 strategies


@pytest.fixture(scope="module", autouse=True)
def _few_bootstrap_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saddlepoint.games.runs.play._DRAWS", 8)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "mine"
    result = call("game", f"{TARGETS}:exits", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made[0], tmp_path / "runs" / "mine").relative_to(tmp_path)


def test_a_game_prints_the_matrix_its_solution_and_each_strategy_under_each_attacker(made):
    folder, result = made
    found = GameRecord.load(folder)
    lines = result.stdout.splitlines()
    matrix = [
        line.split()
        for line in lines
        if line.strip().startswith("fgsm at ") and line.rstrip()[-1] in "0123456789*"
    ]
    assert len(matrix) == 7
    for a, words in enumerate(matrix):
        assert [float(word.rstrip("*")) for word in words[3:]] == [
            round(100 * p, 1) for p in found.payoff[a].tolist()
        ]
        assert [word.endswith("*") for word in words[3:]] == [d == a for d in range(7)]
    lines_of_the_solution = (
        "restricted value",
        "NEED's mix",
        "duality gap",
        "AIMER's best response",
        "mismatch R_mis",
        "matched rows beaten",
    )
    assert all(
        any(line.strip().startswith(name) for line in lines)
        for name in (*lines_of_the_solution, "per-image game")
    )
    for strategy in found.strategies:
        [line] = [
            line
            for line in lines
            if line.strip().startswith(strategy.name) and line.count("%") == 5
        ]
        assert (
            f"{percent_cell(strategy.per_image.value)} ({100 * strategy.per_image.low:.1f}–" in line
        )
    assert "Accuracy of NEED minus that of the best pure strategy" in result.stdout
    assert lines[-1] == f"Report: {folder / 'report.html'}"
    assert (folder / "report.html").stat().st_size > 10_000
    assert f"{CELLS - 8} of {CELLS - 8} cells" in result.stderr.splitlines()[-1]


def test_json_prints_the_record_and_nothing_else(run):
    result = call("game", f"{TARGETS}:exits", *SMALL, "--out", run, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    saved = json.loads((run / "game.json").read_text())
    assert {name: saved[name] for name in record} == record
    assert (record["schema"], record["kind"]) == (2, "game")
    assert (record["n"], record["built_on"]) == (40, 20)
    assert {
        "payoff",
        "value",
        "equilibrium",
        "strategies",
        "gains",
        "spec",
        "passed",
        "hashes",
        "versions",
    } <= record.keys()
    assert sum(record["equilibrium"]["mix"]) == pytest.approx(1)


def test_quiet_prints_the_outcome_and_what_changes_its_meaning(run):
    result = call("game", f"{TARGETS}:exits", *SMALL, "--out", run, "--quiet")
    lines = result.stderr.splitlines()
    symptoms = GameRecord.load(run).symptoms
    assert [line.partition(")")[0] for line in lines] == [
        f"{symptom.level} ({symptom.name}" for symptom in symptoms
    ]
    assert len(result.stdout.splitlines()) == 2


def test_the_command_of_the_record_finds_the_same_game(run):
    again = call(*GameRecord.load(run).command.split()[1:], "--out", run)
    assert again.exit_code == 0, again.output
    assert again.stderr.splitlines() == [
        "8 of 8 cells are finished already.",
        "12 of 12 cells are finished already.",
    ]


@pytest.mark.parametrize("name", ["strategic", "stages"])
def test_the_views_of_a_defense_are_played_without_its_own_strategy(name):
    result = call(
        "game",
        f"{TARGETS}:{name}",
        "--n",
        "8",
        "--eps",
        "0.2",
        "--attack",
        "fgsm",
        "--quiet",
        "--out",
        "here",
    )
    assert result.exit_code == 0, result.output
    assert GameRecord.load("here").exits == (3 if name == "strategic" else 2)


def test_an_embedded_network_is_played_and_a_network_with_exits_is_audited():
    result = call(
        "game",
        "zoo:digits-exits",
        "--eps",
        "0.15",
        "--n",
        "8",
        "--attack",
        "fgsm",
        "--subsets",
        "intervals",
        "--quiet",
    )
    assert result.exit_code == 0, result.output
    assert GameRecord.load("runs/game-digits-exits-linf-0.15-digits-8-fgsm").correct.shape == (
        10,
        10,
        4,
    )
    audited = call("audit", f"{TARGETS}:exits", *QUICK)
    assert "note (several exits): " in audited.stdout


def test_of_many_columns_the_important_ones_are_printed_with_the_place_of_the_others():
    result = call(
        "game",
        f"{TARGETS}:five",
        "--n",
        "8",
        "--eps",
        "0.2",
        "--attack",
        "fgsm",
        "--rows",
        "double-oracle",
        "--out",
        "here",
    )
    assert result.exit_code == 0, result.output
    assert (
        "16 of 31 columns, those of NEED's mix and the best pure ones (all are in here/game.json)"
        in result.stdout
    )
    assert "when the double oracle stopped" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py:make",), "There is no file"),
        ((f"{TARGETS}:make", "--allow-unusual"), "attach_exits"),
        ((f"{TARGETS}:scores", "--allow-unusual"), "need gradients"),
        ((f"{TARGETS}:training",), "Call net.eval() first"),
        (
            (f"{TARGETS}:twenty",),
            "Use subsets='intervals' (210 runs of neighboring exits), and rows='double-oracle'",
        ),
        ((f"{TARGETS}:exits", "--eps", "8/0"), "a zero denominator, '8/0'"),
        ((f"{TARGETS}:exits", "--split", "1.5"), "--split: expected a number below 1"),
        (
            (f"{TARGETS}:exits", "--n", "2", "--split", "0.1"),
            "leaves 0 to build the game and 2 to evaluate strategies",
        ),
        ((f"{TARGETS}:exits", "--attack", "pgd"), "pgd"),
        ((f"{TARGETS}:exits", "--tolerance", "0"), "tolerance"),
        ((f"{TARGETS}:exits", "--data", "digit"), "Did you mean 'digits'?"),
        ((f"{TARGETS}:exits", "--device", "abacus"), "the device 'abacus' cannot be used"),
        ((f"{TARGETS}:exits", "--out", "file/below"), "Choose another folder with --out"),
        (("zoo:digits-exit",), "Did you mean 'digits-exits'?"),
    ],
)
def test_a_game_that_cannot_be_played_is_an_error_before_any_attack(words, message):
    Path("file").write_text("")
    assert message in error_of("game", *words)


@pytest.mark.slow
def test_an_interrupt_stops_between_cells_and_the_same_command_continues():
    words = [
        "game",
        f"{TARGETS}:slowly",
        "--n",
        "12",
        "--eps",
        "0.2",
        "--attack",
        "fgsm",
        "--batch-size",
        "2",
        "--out",
        "run",
    ]
    process = start(*words)
    ledger = Path("run/ledger.jsonl")
    deadline = time.monotonic() + 60
    while not (ledger.is_file() and ledger.read_text().count('"cell"') >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, messages = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    last = messages.splitlines()[-1]
    counted = r"(1 of \d+ cells? of this step is|(none|\d+) of \d+ cells of this step are)"
    assert re.search(rf"{counted} finished and kept. Run the same command to continue\.", last)
    done = len(Store(Path("run")).keys())
    assert 2 <= done < 21
    assert (summary(Path("run")).kind, summary(Path("run")).finished) == ("game", False)
    assert "no game.json" in error_of("runs", "export", "run")
    again = call(*words)
    assert again.exit_code == 0, again.output
    assert f"{done} of 24 cells are finished already" in again.stderr
    assert summary(Path("run")).finished


def test_runs_lists_and_shows_games_beside_audits(run):
    assert call("audit", f"{TARGETS}:make", *QUICK, "--out", "runs/other", "--quiet").exit_code == 0
    lines = {
        words[0]: words
        for line in call("runs", "list").stdout.splitlines()
        if len(words := line.split()) > 5
    }
    assert lines["mine"][1:5] == ["game", f"{TARGETS}:exits", "Linf", "0.2"]
    assert lines["mine"][-4:] == ["finished", f"{CELLS}/{CELLS}", "as", "recorded"]
    assert lines["other"][1] == "audit"
    shown = call("runs", "show", run, "--cells")
    assert shown.stdout.startswith(f"game: {TARGETS}:exits, Linf 0.2, 40 images")
    assert shown.stdout.count(" done ") == CELLS
    assert 'attack = "fgsm"' in shown.stdout
    assert json.loads(call("runs", "show", run, "--json").stdout)["summary"]["kind"] == "game"


@pytest.mark.slow
def test_verify_evaluates_every_point_again_in_a_new_process(run, monkeypatch):
    monkeypatch.setattr("saddlepoint.games.runs.play._DRAWS", 200)  # as the fresh process has it
    assert call("game", f"{TARGETS}:exits", *SMALL, "--out", run, "--quiet").exit_code == 0
    good = call("runs", "verify", run)
    assert good.exit_code == 0, good.output
    assert "points are as recorded." in good.stdout


def test_export_writes_the_matrix(run):
    found = GameRecord.load(run)
    rows = list(csv.DictReader(io.StringIO(call("runs", "export", run).stdout)))
    assert [row["attack"] for row in rows] == [row.name for row in found.rows]
    assert [float(row["1+3"]) for row in rows] == found.payoff[
        :, found.columns.index("1+3")
    ].tolist()
    assert [float(row["probability"]) for row in rows] == list(found.attacker)
    assert json.loads(call("runs", "export", run, "--json").stdout) == found.record()
    message = error_of("runs", "export", run, "--format", "latex")
    assert "exported with --format csv or json" in message
    assert "one line per attack" in error_of("runs", "export", run, "--per", "example")


def test_the_report_is_written_again_and_a_game_cannot_be_part_of_a_site(run):
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    assert call("report", run).stdout == f"{run}/report.html\n"
    assert (run / "report.html").read_bytes() == before
    assert "a site compares audits" in error_of("report", run, "--out", "site")
    asked = (run / "run.json").read_text()
    (run / "run.json").write_text(asked.replace('"seed": 0', '"seed": 1'))
    assert "its run.json describes another" in error_of("report", run)
    (run / "run.json").write_text(asked)
    (run / "game.safetensors").write_bytes(b"\0" * 64)
    assert "is damaged" in error_of("report", run)


def test_a_game_in_the_folder_of_an_audit_is_reported_and_the_reverse(run):
    result = call("audit", f"{TARGETS}:make", *QUICK, "--out", run)
    assert f"{run} held a game of {TARGETS}:exits" in result.stderr
    assert summary(run).kind == "audit"
    again = call("game", f"{TARGETS}:exits", *SMALL, "--out", run)
    assert f"{run} held an audit of {TARGETS}:make" in again.stderr
    assert "12 of 12 cells are finished already" in again.stderr
    assert "Removed 3 cells" in call("runs", "gc", run).stdout
    assert summary(run).finished
