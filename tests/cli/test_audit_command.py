"""`saddlepoint audit`: from the command line to the report, and every mistake on the way."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.cli.commands import QUICK, TARGETS, call, error_of

from saddlepoint.audits import Audit
from saddlepoint.cli.folders import default_folder


def test_an_audit_prints_its_table_the_verdict_and_where_the_report_is():
    result = call("audit", f"{TARGETS}:make", *QUICK, "--out", "here")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    table = [line.split()[0] for line in lines if line.startswith(" ") and "%" in line]
    assert table[:3] == ["clean", "apgd-ce", "apgd-dlr"]
    assert lines[-1] == "Report: here/report.html"
    assert lines[-2].endswith(Audit.load("here").summary())
    assert "of 20 images still robust" in result.stderr
    assert Path("here/report.html").stat().st_size > 1000


def test_the_record_names_data_classes_and_a_command_that_reproduces_it():
    assert call("audit", f"{TARGETS}:make", *QUICK, "--out", "here").exit_code == 0
    saved = Audit.load("here")
    assert saved.data == "digits"
    assert saved.classes == tuple("0123456789")
    again = call(*saved.command.split()[1:], "--out", "there", "--json")
    first = json.loads(Path("here/audit.json").read_text())
    second = json.loads(again.stdout)
    for record in (first, second):
        record.pop("seconds")
        for row in (*record["rows"], *record["stages"]):
            row.pop("seconds")
    assert first == second


def test_json_prints_the_record_and_nothing_else():
    result = call("audit", f"{TARGETS}:make", *QUICK, "--json")
    assert result.stderr == ""
    record = json.loads(result.stdout)
    assert record["n"] == 20
    assert record["rows"][0]["name"] == "apgd-ce"


def test_quiet_prints_the_verdict_and_what_changes_its_meaning():
    result = call("audit", f"{TARGETS}:exits", *QUICK, "--quiet", "--out", "here")
    assert len(result.stdout.splitlines()) == 2
    symptoms = Audit.load("here").symptoms
    lines = result.stderr.splitlines()
    assert len(lines) == len(symptoms)
    assert any("treated as MultiExit(net), which answers with its last exit" in li for li in lines)


def test_quiet_says_that_the_record_of_another_audit_is_replaced():
    for target, replaced in (("make", False), ("instance", True)):
        result = call("audit", f"{TARGETS}:{target}", *QUICK, "--quiet", "--out", "here")
        assert ("Its cells stay; its record and report are replaced." in result.stderr) is replaced


@pytest.mark.parametrize(
    "mistake",
    [("--eps", "8"), ("--norm", "L2", "--eps", "1000"), ("--data", "missing.npz")],
    ids=lambda words: words[-1],
)
@pytest.mark.parametrize("out", [(), ("--out", "some/where")], ids=["default", "given"])
def test_a_rejected_request_leaves_no_folder(mistake, out):
    error_of("audit", f"{TARGETS}:make", *QUICK, *out, *mistake)
    assert list(Path().iterdir()) == []


def test_a_rejected_request_keeps_folders_that_were_there():
    Path("there").mkdir()
    error_of("audit", f"{TARGETS}:make", *QUICK, "--out", "there/run", "--eps", "8")
    assert [str(path) for path in Path().rglob("*")] == ["there"]


def test_a_percentage_is_answered_with_the_fraction():
    message = error_of("audit", f"{TARGETS}:make", *QUICK, "--fail-under", "45")
    assert "for 45 % write 0.45" in " ".join(message.replace("│", " ").split())


def test_a_claim_is_tested_and_saved_and_is_part_of_the_command():
    claim = ("--claim", "1", "--allow-unusual")  # the net is not trained
    result = call("audit", f"{TARGETS}:make", *QUICK, *claim, "--out", "here")
    assert result.exit_code == 1, result.output
    assert "Not met: the claim is 100 %" in result.stderr
    assert "claim is 100 %, but robust accuracy is ≤ " in result.stdout
    assert "not run  black-box attacks:" in result.stdout
    saved = Audit.load("here")
    assert (saved.verdict, saved.compared.claim) == ("overstated", 1.0)
    assert "--claim 1" in saved.command
    message = error_of("audit", f"{TARGETS}:make", *QUICK, "--claim", "62")
    assert "--claim: expected a share between 0 and 1: for 62 % write 0.62. Got 62." in message


def test_a_job_fails_below_the_required_accuracy_and_its_files_say_why():
    files = ("--junit", "audit.xml", "--summary", "summary.md")
    words = ("audit", f"{TARGETS}:make", *QUICK, "--allow-unusual", "--quiet", *files)
    assert call(*words, "--fail-under", "0").exit_code == 0
    assert ElementTree.parse("audit.xml").getroot().get("failures") == "0"
    failed = call(*words, "--fail-under", "1")
    assert failed.exit_code == 1
    assert "Not met: at least 100 % is required; robust accuracy is ≤" in failed.stderr
    root = ElementTree.parse("audit.xml").getroot()
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    summary = Path("summary.md").read_text()
    assert summary.count("## ") == 2  # appended, so that several audits fit into one job
    assert "- robust accuracy, **not met**: at least 100 % is required" in summary


@pytest.mark.parametrize("name", ["instance", "defense", "scores"])
def test_models_defenses_and_callables_are_audited(name):
    result = call("audit", f"{TARGETS}:{name}", *QUICK, "--quiet")
    assert result.exit_code == 0, result.output


def test_a_zoo_model_is_audited_on_a_file_of_images():
    images = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    np.savez("mine.npz", x=images, y=np.arange(12) % 10)
    result = call(
        "audit",
        "zoo:digits-standard",
        "--data",
        "mine.npz",
        "--norm",
        "L2",
        "--budget",
        "quick",
        "--json",
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["n"] == 12  # all there are
    assert record["threat"].startswith("L2 radius 0.5")


def test_default_folders_have_plain_names():
    assert default_folder("zoo:digits-pgd", "linf", "0.15", "digits", 500, "quick") == Path(
        "runs/digits-pgd-linf-0.15-digits-500-quick"
    )
    assert default_folder("some/net.py:make", "linf", "8/255", "a/my.npz", None, "standard") == (
        Path("runs/net-make-linf-8-255-my-all-standard")
    )
    assert default_folder("my.models:Net.small", "l2", "0.5", "a/b.py:load", 9, "quick") == (
        Path("runs/my.models-Net.small-l2-0.5-b-load-9-quick")
    )
    assert default_folder("zoo:runs/mine/digits-pgd", "l1", "12", "mnist", 1, "quick") == Path(
        "runs/digits-pgd-l1-12-mnist-1-quick"
    )


def test_audits_with_other_data_number_of_images_or_budget_have_other_default_folders():
    base = ("net.py:make", "linf", "8/255")
    others = [("digits", 20, "quick"), ("mnist", 20, "quick"), ("digits", 9, "quick")]
    others += [("digits", None, "quick"), ("digits", 20, "standard")]
    assert len({default_folder(*base, *other) for other in others}) == len(others)


@pytest.mark.parametrize("eps", ["abc", "-1", "nan", "1/2/3"])
def test_a_radius_that_is_not_a_number_is_an_error(eps):
    assert f"got {eps!r}" in error_of("audit", f"{TARGETS}:make", f"--eps={eps}")


def test_a_radius_with_a_zero_denominator_is_an_error():
    error = error_of("audit", f"{TARGETS}:make", "--eps=8/0")
    assert "got a fraction with a zero denominator, '8/0'" in error


def test_a_radius_that_allows_every_image_is_an_error_unless_it_is_allowed():
    audit = ("audit", "zoo:digits-standard", "--n", "30", "--eps", "8", "--dry-run")
    assert "Did you mean 8/255?" in error_of(*audit)
    allowed = call(*audit, "--allow-unusual")
    assert allowed.exit_code == 0, allowed.output
    assert "allow_unusual = true" in allowed.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--norm", "l3"], "'--norm': 'l3' is not one of 'linf', 'l2', 'l1'."),
        (["--budget", "quik"], "'quick', 'standard', 'thorough'. Did you mean 'quick'?"),
        (["--target-class", "-1"], "'--target-class': expected a number of at least 0, got '-1'."),
        (["--eps=-0.1"], "--eps: the radius must not be negative, got '-0.1'."),
        (["--controlled-fraction", "2"], "expected a share between 0 and 1. Got 2."),
        (["--n", "0"], "--n: expected a number of at least 1, got 0"),
        (["--n", "x"], "--n must be a whole number or 'all', got 'x'"),
        (
            ["--executor", "serial", "--workers", "2"],
            "--workers is for --executor processes, not serial",
        ),
        (
            ["--workers", "2", "--address", "here:1"],
            "--workers is for --executor processes, not ray",
        ),
        (
            ["--executor", "processes", "--address", "here:1"],
            "--address is for --executor ray, not processes",
        ),
        (["--batch-size", "0"], "--batch-size"),
        (["--seed", "x"], "'--seed': expected a whole number, got 'x'."),
        (["--n", "501"], "n must be between 1 and 500"),
        (["--device", "abacus"], "the device 'abacus' cannot be used"),
        (["--data", "digit"], "Did you mean 'digits'?"),
        (["--data", "mnist", "--root", "empty"], "saddlepoint data pull mnist"),
        (["--data", "cli_missing.npz"], "cli_missing.npz"),
        (["--data", f"{TARGETS}:raises"], "KeyError: 'weights' (cli_targets.py, line"),
    ],
)
def test_an_invalid_option_is_explained(options, message):
    found = error_of("audit", f"{TARGETS}:make", *options).replace("│ ", "").replace(" │", "")
    assert message in found


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "net",
            "a target is 'file.py:factory', 'package.module:factory', 'zoo:NAME' or a file of "
            "ONNX, 'model.onnx'; got 'net'",
        ),
        ("missing.py:make", "There is no file"),
        (str(TARGETS), "cli_targets.py has: "),
        (f"{TARGETS.with_name('cli_target.py')}:make", "Did you mean 'cli_targets.py'?"),
        ("no/folder/net.py:make", "no/folder. Check the path"),
        ("no_such_module:make", "There is no module 'no_such_module'"),
        (f"{TARGETS}:mke", "Did you mean 'make'?"),
        (f"{TARGETS}:number", "is a int; a target is an nn.Module"),
        (f"{TARGETS}:needs_arguments", "missing a required argument: 'x'"),
        (f"{TARGETS}:raises", "raises() failed: KeyError: 'weights' (cli_targets.py, line"),
        (f"{TARGETS}:nothing", "returned None"),
        (f"{TARGETS}:training", "Call net.eval() first"),
        (f"{TARGETS}:wrong_shape", "images of another shape"),
        ("zoo:digits-pdg", "Did you mean 'digits-pgd'?"),
        ("zoo:nowhere/digits-pgd", "no model is called 'digits-pgd'"),
    ],
)
def test_a_target_that_cannot_be_loaded_is_explained(target, message):
    assert message in error_of("audit", target, *QUICK)


def test_a_folder_that_cannot_be_written_to_is_found_before_the_attacks():
    Path("file").write_text("")
    assert "Choose another folder with --out" in error_of(
        "audit", f"{TARGETS}:make", *QUICK, "--out", "file/below"
    )


def test_a_bug_keeps_its_traceback(monkeypatch):
    def trip(*_, **__):
        raise TypeError("a bug")

    monkeypatch.setattr("saddlepoint.cli.audit.run", trip)
    result = call("audit", f"{TARGETS}:make", *QUICK)
    assert result.exit_code == 1
    assert isinstance(result.exception, TypeError)


def test_a_mistake_shows_its_traceback_on_request():
    result = call("--traceback", "audit", "missing.py:make")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "LocateError"


def test_a_specification_file_is_run():
    Path("spec.toml").write_text(
        f'target = "{TARGETS}:make"\nbudget = "quick"\n[data]\nn = 20\n[threat]\neps = "0.05"\n'
    )
    result = call("run", "spec.toml")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "Report: runs/spec/report.html"
    Path("spec.toml").write_text('target = "x"\nbugdet = "quick"\n')
    assert "Did you mean 'budget'?" in error_of("run", "spec.toml")
    assert "there is no specification" in error_of("run", "missing.toml")


def test_help_is_wrapped_by_the_terminal_and_not_by_the_lines_of_docstrings():
    for words in ((), ("audit",), ("runs", "verify")):
        first = call(*words, "--help").stdout.partition("╭")[0]
        paragraphs = [part.splitlines() for part in first.split("\n" + " " * 80 + "\n")]
        broken = [
            (line, following)
            for lines in paragraphs
            for line, following in pairwise(lines)
            if len(line.rstrip()) + len(following.split(maxsplit=1)[0]) < 78 and line.strip()
        ]
        assert broken == [], words
