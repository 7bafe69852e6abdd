"""Every command except `audit`, and what all commands have in common."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.commands import START, TARGETS, call, error_of

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint import zoo as train
from saddlepoint.audits.verdict import SymptomName
from saddlepoint.cli import demo_run, errors
from saddlepoint.data import PULLABLE
from saddlepoint.evaluation import FixedPoints
from saddlepoint.phrases import percent_cell
from saddlepoint.zoo import recipes
from saddlepoint.zoo.adaptive import TABLE

# Commands with options that are made from the specification.
WITH_SPECIFICATION = (("audit",), ("probe",), ("game",), ("demo",), ("selftest",))
OTHERS = (
    (),
    ("version",),
    ("run",),
    ("zoo",),
    ("train",),
    ("reproduce",),
    ("data",),
    ("data", "list"),
    ("data", "pull"),
    ("report",),
    ("view",),
    ("doctor",),
    ("runs",),
    ("runs", "list"),
    ("runs", "show"),
    ("runs", "verify"),
    ("runs", "export"),
    ("runs", "gc"),
    ("runs", "compact"),
)
COMMANDS = (*WITH_SPECIFICATION, *OTHERS)


rebuilding = import_module("saddlepoint.zoo.build")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words) or "none")
def test_every_help_page_ends_with_examples(words):
    result = call(*words, "--help")
    assert result.exit_code == 0
    assert "$ saddlepoint" in result.stdout


@pytest.mark.parametrize(
    ("commands", "more"),
    [(WITH_SPECIFICATION, ()), (OTHERS, ("pydantic", "saddlepoint.runs"))],
    ids=["with specification", "others"],
)
def test_help_does_not_import_heavy_modules(commands, more):
    heavy = ("torch", "numpy", "scipy", "sklearn", "plotly", "pooch", *more)
    code = (
        "import sys\nfrom saddlepoint.cli import app\n"
        f"for words in {[[*words, '--help'] for words in commands]!r}:\n"
        "    app(words, standalone_mode=False)\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words) or "none")
def test_help_makes_few_function_calls(words):
    """Calls, not seconds: 670,000 calls take half a second, but seconds depend on the machine."""
    assert function_calls(*words, "--help") < 800_000


def function_calls(*words: str) -> int:
    code = (
        "import cProfile, pstats, sys\nprofile = cProfile.Profile()\nprofile.enable()\n"
        "from saddlepoint.cli import app\n"
        f"app({list(words)!r}, standalone_mode=False)\nprofile.disable()\n"
        "print(pstats.Stats(profile).total_calls, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stderr)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell, monkeypatch):
    monkeypatch.setenv("_SADDLEPOINT_COMPLETE", f"source_{shell}")
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert "_SADDLEPOINT_COMPLETE" in done.stdout
    monkeypatch.setenv("_SADDLEPOINT_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "saddlepoint run")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "saddlepoint run")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=False
    )
    assert "runs" in done.stdout


def test_the_version_is_printed_by_option_and_by_command():
    assert call("--version").stdout == call("version").stdout == "saddlepoint 0.2.0\n"


def test_an_unknown_command_is_a_mistake():
    assert call("audti").exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "runs/a"), "No such command 'verify'. Did you mean `saddlepoint runs verify`?"),
        (("gc",), "Did you mean `saddlepoint runs gc`?"),
        (("list",), "Did you mean `saddlepoint runs list` or `saddlepoint data list`?"),
        (
            ("compare", "a", "b"),
            "No such command 'compare'. `saddlepoint report RUN RUN -o FOLDER`",
        ),
        (("audti",), "No such command 'audti'. Did you mean 'audit'?"),
    ],
)
def test_the_error_about_an_unknown_command_names_the_right_one(words, message):
    result = call(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_zoo_lists_every_model_with_its_scores():
    result = call("zoo")
    assert all(name in result.stdout for name in zoo.names())
    records = json.loads(call("zoo", "--json").stdout)
    assert [record["name"] for record in records] == list(zoo.names())
    lines = result.stdout.splitlines()
    for record in records:
        (line,) = (line for line in lines if line.split()[:1] == [record["name"]])
        audit = record["audit"]
        if audit is None:
            assert "%" not in line  # no accuracy without an audit
            assert " not audited " in line
            continue
        assert audit["objection"] == ""
        assert percent_cell(audit["robust_accuracy"]) in line
        assert (audit["budget"], audit["verdict"] in line) == ("standard", True)


def test_zoo_lists_the_categories_of_adaptive_defenses():
    """Every row of Table 1 of Croce et al. 2022 is listed with a model, as a table and as JSON."""
    printed = call("zoo").stdout.splitlines()
    records = {
        record["defense"]: record
        for record in json.loads(call("zoo", "--json").stdout)
        if record["defense"]
    }
    for row in TABLE:
        (line,) = (line.split() for line in printed if f" {row.name} " in line)
        taxonomy = records[row.name]["taxonomy"]
        assert line[2] == taxonomy["principle"] == row.principle
        assert " ".join(line[3:]).startswith(
            ", ".join(row.blocks) + f" {records[row.name]['net']} "
        )
        assert tuple(taxonomy["blocks"]) == row.blocks
    assert records["DENT"]["taxonomy"] is None
    assert any(
        "IP: input purification; MA: model adaptation; IA: iterative algorithm" in line
        for line in printed
    )


@pytest.mark.slow
def test_train_writes_a_defense_that_can_be_audited():
    result = call("train", "digits-anti-adversary", "--out", "mine")
    assert result.exit_code == 0, result.output
    assert "Record: mine/digits-anti-adversary.json" in result.stdout
    packaged = zoo.entry("digits-anti-adversary")
    mine = zoo.entry("digits-anti-adversary", "mine")
    assert mine.check.accuracy["clean"] == packaged.check.accuracy["clean"]
    audited = call(
        "audit",
        "zoo:mine/digits-anti-adversary",
        "--eps",
        "0.15",
        "--n",
        "5",
        "--budget",
        "quick",
        "--quiet",
    )
    assert audited.exit_code == 0, audited.output
    assert "Did you mean 'digits-anti-adversary'?" in error_of("train", "digits-anti-adversry")


def test_train_writes_a_model_that_can_be_audited(monkeypatch):
    short = replace(train.RECIPES["digits-fast"], epochs=1)
    monkeypatch.setattr(recipes, "RECIPES", {"digits-fast": short})
    checked = partial(train.check_accuracy, adversaries=(FixedPoints(),))
    monkeypatch.setattr(rebuilding, "check_accuracy", checked)
    result = call("train", "digits-fast", "--out", "mine")
    assert result.exit_code == 0, result.output
    assert "epoch 1 of 1" in result.stderr
    assert "saddlepoint audit zoo:mine/digits-fast --eps 0.15" in result.stdout
    audited = call(
        "audit",
        "zoo:mine/digits-fast",
        "--eps",
        "0.15",
        "--n",
        "10",
        "--budget",
        "quick",
        "--quiet",
    )
    assert audited.exit_code == 0, audited.output


def test_train_prints_only_the_record_as_json(monkeypatch):
    monkeypatch.setattr(
        recipes, "RECIPES", {"digits-fast": replace(train.RECIPES["digits-fast"], epochs=1)}
    )
    checked = partial(train.check_accuracy, adversaries=(FixedPoints(),))
    monkeypatch.setattr(rebuilding, "check_accuracy", checked)
    result = call("train", "digits-fast", "--out", "mine", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    printed = json.loads(result.stdout)
    assert Path(printed["weights"]).is_file()
    written = json.loads(Path(printed["record"]).read_text())
    assert {name: printed[name] for name in written} == written


def test_the_error_about_an_unknown_recipe_names_the_nearest():
    assert "Did you mean 'digits-pgd'?" in error_of("train", "digits-pdg")


def test_data_list_shows_what_is_installed():
    lines = call("data", "list", "--root", "empty").stdout.splitlines()
    here = {line.split()[0]: line.split()[1] for line in lines if len(line.split()) > 2}
    assert here["digits"] == "yes,"
    assert here["cifar10"] == "no"
    found = json.loads(call("data", "list", "--root", "empty", "--json").stdout)
    assert {one["name"]: one["shape"] for one in found if one["shape"]} == {"digits": [1, 8, 8]}


def test_data_pull_explains_why_it_cannot_download():
    assert "nothing to pull" in error_of("data", "pull", "digits", "--root", "here")
    assert "Did you mean 'mnist'?" in error_of("data", "pull", "mnits", "--root", "here")
    nowhere = "http://127.0.0.1:9"  # the discard port: no server listens there
    assert "Could not download" in error_of(
        "data", "pull", "mnist", "--root", "here", "--base-url", nowhere
    )
    Path("file").write_text("")
    assert "Cannot write" in error_of("data", "pull", "mnist", "--root", "file")


def test_data_pull_prints_the_folder_as_json(monkeypatch):
    monkeypatch.setitem(PULLABLE, "mnist", ())  # nothing to download: the folder alone
    result = call("data", "pull", "mnist", "--root", "here", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"name": "mnist", "folder": "here/mnist"}
    assert Path("here/mnist").is_dir()


def test_report_prints_what_it_wrote_as_json():
    for name in ("a", "b"):
        assert (
            call(
                "audit",
                f"{TARGETS}:make",
                "--n",
                "10",
                "--budget",
                "quick",
                "--out",
                name,
                "--quiet",
            ).exit_code
            == 0
        )
    for words, page in ((("a",), "a/report.html"), (("a", "b"), "site/index.html")):
        result = call("report", *words, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout) == {"page": page, "runs": list(words)}
        assert Path(page).is_file()


def test_a_report_of_an_earlier_request_is_rejected():
    assert (
        call(
            "audit", f"{TARGETS}:make", "--n", "10", "--budget", "quick", "--out", "run", "--quiet"
        ).exit_code
        == 0
    )
    request = json.loads(Path("run/run.json").read_text())
    for changes in (
        {"cells": request["cells"][1:]},
        {"seed": 7},
        {"target": {**request["target"], "name": "other"}},
    ):
        Path("run/run.json").write_text(json.dumps({**request, **changes}))
        for words in (("report", "run"), ("report", "run", "-o", "site/")):
            assert "its run.json describes another" in error_of(*words)
        assert not Path("site").exists()
    Path("run/run.json").write_text(json.dumps(request))
    assert call("report", "run").exit_code == 0


def test_a_report_is_written_again():
    assert (
        call(
            "audit", f"{TARGETS}:make", "--n", "10", "--budget", "quick", "--out", "run", "--quiet"
        ).exit_code
        == 0
    )
    before = Path("run/report.html").read_bytes()
    Path("run/report.html").unlink()
    assert call("report", "run").stdout == "run/report.html\n"
    assert Path("run/report.html").read_bytes() == before
    assert call("report", "run", "--out", "elsewhere.html").exit_code == 0
    assert Path("elsewhere.html").read_bytes() == before


def test_a_missing_or_damaged_run_is_an_error():
    assert "no audit.json in nowhere" in error_of("report", "nowhere")
    assert (
        call(
            "audit", f"{TARGETS}:make", "--n", "10", "--budget", "quick", "--out", "run", "--quiet"
        ).exit_code
        == 0
    )
    good = Path("run/audit.json").read_text()
    for damaged in ("{", "[]", "{}", good.replace('"seed"', '"sede"')):
        Path("run/audit.json").write_text(damaged)
        assert "run holds no complete audit" in error_of("report", "run")
    newer = re.sub('"schema": [0-9]+', '"schema": 99', good, count=1)
    Path("run/audit.json").write_text(newer)
    assert "run contains a record of schema 99" in error_of("report", "run")
    Path("run/audit.json").write_text(good)
    Path("run/points.safetensors").write_bytes(b"\0" * 64)
    assert "run holds no complete audit" in error_of("report", "run")


def test_demo_shows_three_evaluations_of_a_model_and_ends_with_the_report():
    options = ("--n", "4", "--budget", "quick", "--out", "shown", "--model", "early-exit")
    result = call("demo", *options, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    (model,) = json.loads(result.stdout)["models"]
    assert model["name"] == "early-exit"
    assert model["robust"] <= min(model["authors"], model["autoattack"]) < model["clean"]
    page = Path("shown/index.html").read_text()
    assert Path("shown/early-exit/report.html").is_file()
    assert "early-exit/report.html" in page
    assert all(escape(model[text]) in page for text in ("title", "mistake", "why"))
    assert "the demo has the models" in error_of("demo", *options[:-1], "late-exit")


def test_the_demo_never_reports_more_than_an_evaluation_beside_it(monkeypatch):
    """The audit of this test has one useless attack: all it knows are the points of the others."""
    weak = sp.Direct("weak", sp.PGD(1, step_size=1e-6, random_start=False))
    monkeypatch.setattr(demo_run, "audit", partial(demo_run.audit, adversaries=[weak]))
    result = demo_run.measure("early-exit", Path("known"), 8, "quick", demo_run.Effort.TINY)
    assert result.robust <= min(result.authors, result.autoattack) < result.clean
    stored = sp.Audit.load("known/early-exit")
    assert SymptomName.EXTERNAL_STRONGER in [symptom.name for symptom in stored.symptoms]


def test_no_colors_if_the_output_is_not_a_terminal():
    done = subprocess.run(
        [sys.executable, "-c", START, "--help"], capture_output=True, text=True, check=True
    )
    assert "\x1b[" not in done.stdout


def test_our_errors_are_mistakes_of_the_user_and_errors_of_libraries_are_bugs():
    code = "def fail():\n    raise {}('say what to do')"
    for module, error, expected in (
        ("saddlepoint.somewhere", "ValueError", True),
        ("saddlepoint.somewhere", "AssertionError", False),
        ("saddlepoint.somewhere", "KeyError", False),
        ("torch.somewhere", "ValueError", False),
        ("torch.somewhere", "FileNotFoundError", True),
    ):
        exec(code.format(error), scope := {"__name__": module})
        assert errors.is_mistake(caught(scope["fail"])) is expected, (module, error)


def caught(act) -> BaseException:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_package_runs_as_a_module_and_has_a_version() -> None:
    words = [sys.executable, "-m", "saddlepoint", "version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"saddlepoint {sp.__version__}\n"
