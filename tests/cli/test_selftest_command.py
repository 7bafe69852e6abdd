"""`saddlepoint selftest`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.commands import call, told

from saddlepoint.selftests import CASES


def test_the_command_tests_prints_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "selftest.json"
    asked = ("--case", "padded classes", "--budget", "quick")
    done = call("selftest", *asked, "--json", "--out", out, "--page", tmp_path / "page.md")
    assert done.exit_code == 0
    kept = json.loads(done.stdout)
    assert kept == json.loads(out.read_text(encoding="utf-8"))
    assert [one["case"] for one in kept["tests"][0]["lines"]] == ["padded classes"]
    assert kept["tests"][0]["command"] == "saddlepoint selftest --evaluator ours --budget quick"
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# Who finds the truth")


def test_the_command_lists_cases_and_refuses_unknown_ones() -> None:
    listed = call("selftest", "--list")
    assert all(case.name in listed.stdout for case in CASES)
    assert "there is no case 'nothing'" in told("selftest", "--case", "nothing")
