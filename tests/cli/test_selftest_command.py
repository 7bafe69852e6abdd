"""`saddlepoint selftest`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import call, error_of

from saddlepoint.selftests import CASES


def test_the_command_runs_a_case_prints_and_writes_the_record(tmp_path: Path) -> None:
    out = tmp_path / "selftest.json"
    options = ("--case", "padded classes", "--budget", "quick")
    done = call("selftest", *options, "--json", "--out", out, "--page", tmp_path / "page.md")
    assert done.exit_code == 0
    kept = json.loads(done.stdout)
    assert kept == json.loads(out.read_text(encoding="utf-8"))
    assert [one["case"] for one in kept["tests"][0]["lines"]] == ["padded classes"]
    assert kept["tests"][0]["command"] == "saddlepoint selftest --evaluator ours --budget quick"
    title = "# Evaluators compared on defenses with known robust accuracy"
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith(title)


def test_the_command_lists_cases_and_rejects_unknown_cases_and_evaluators() -> None:
    listed = call("selftest", "--list")
    assert all(case.name in listed.stdout for case in CASES)
    assert "there is no case 'nothing'" in error_of("selftest", "--case", "nothing")
    assert "there is no evaluator 'nothing'" in error_of("selftest", "--evaluator", "nothing")
