"""Scoring of evaluators, and the record and page of the results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.selftests import CASES, Case, Line, Report, Truth
from saddlepoint.selftests.page import SCHEMA, read, record, text, write
from saddlepoint.selftests.peers import PEERS, Peer, evaluators

FAST = ("plain net", "quantizer")  # the command `saddlepoint selftest` runs all cases


def clean(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
    """An evaluator without an attack: it reports the clean accuracy."""
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def line(
    reported: float,
    truth: Truth | None = None,
    *,
    interval: tuple[float, float] | None = None,
    holds: bool = True,
) -> Line:
    """A result with truth 0.5 by default."""
    return Line("a case", truth or Truth.of(0.5), Report(reported, interval, "", holds), "", 0.0)


def test_the_tolerance_is_two_points() -> None:
    assert [line(reported).outcome for reported in (0.47, 0.481, 0.5, 0.519, 0.53)] == [
        "too low",
        "right",
        "right",
        "right",
        "too high",
    ]


def test_the_interval_counts_only_for_randomized_defenses() -> None:
    wide = (0.4, 0.7)
    assert line(0.56, Truth.of(0.5, random=True), interval=wide).outcome == "right"
    assert line(0.56, Truth.of(0.5), interval=wide).outcome == "too high"
    assert line(0.56, Truth.of(0.5, random=True), interval=(0.52, 0.7)).outcome == "too high"


def test_too_high_a_number_with_a_warning_is_wrong_but_not_deceived() -> None:
    assert line(0.9).deceived
    assert not line(0.9, holds=False).deceived
    assert line(0.9, holds=False).outcome == "too high"
    assert not line(0.1).deceived
    assert not line(0.5).deceived


def test_an_evaluator_without_an_attack_is_deceived_by_every_case() -> None:
    found = sp.selftest(clean, ["plain net", "masked last exit", "labels only", "memorizing"])
    assert found.evaluator == "clean"
    assert found.right == 0
    assert not found.passed
    assert found.deceived == ("plain net", "masked last exit", "labels only", "memorizing")


def test_an_error_in_one_case_does_not_stop_the_others() -> None:
    def picky(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
        if radius < 0.03:
            raise RuntimeError("too small a radius")
        return 0.42

    found = sp.selftest(picky, ["plain net", "padded classes"])
    assert [one.outcome for one in found.lines] == ["failed", "right"]
    assert "too small a radius" in found.lines[0].error
    assert "too small a radius" in str(found)


def test_every_run_gets_a_new_model_and_restores_the_global_generator() -> None:
    earlier_calls: list[int] = []

    def counting(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
        earlier_calls.append(model.target.calls)
        torch.rand(3)
        model(x)
        return 0.0

    before = torch.get_rng_state()
    sp.selftest(counting, ["call counter"])
    sp.selftest(counting, ["call counter"])
    assert earlier_calls == [0, 0]
    assert torch.equal(before, torch.get_rng_state())


def test_user_defined_cases_are_accepted_and_unknown_names_are_rejected() -> None:
    own = replace(CASES[0], name="mine", truth=lambda _: Truth.of(0.95))
    assert sp.selftest(clean, [own]).passed
    with pytest.raises(ValueError, match="there is no case 'mine'; available: plain net"):
        sp.selftest(clean, ["mine"])


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_the_audit_finds_the_truth(name: str) -> None:
    found = sp.selftest(cases=[name])
    assert found.passed, str(found)
    assert found.deceived == ()


def test_a_record_is_written_read_and_rendered(tmp_path: Path) -> None:
    found = sp.selftest(clean, ["plain net", "lucky noise"])
    kept = write(record([found], "a command"), tmp_path / "deep" / "selftest.json")
    assert read(tmp_path / "deep" / "selftest.json") == json.loads(json.dumps(kept))
    assert kept["schema"] == SCHEMA
    assert "| clean | 0 of 2 | 2 | 0 | 0 | 0 |" in text(kept)
    assert "**95.0**" in text(kept)
    assert "Made by `a command` with saddlepoint" in text(kept)


def test_the_published_page_matches_the_published_record() -> None:
    root = Path(__file__).parents[2]
    kept = read(root / "benchmarks" / "records" / "selftest.json")
    assert (root / "docs" / "results" / "selftest.md").read_text(encoding="utf-8") == text(kept)
    assert len(kept["tests"]) >= 4  # saddlepoint and at least three other libraries


def test_writing_keeps_other_evaluators_and_other_cases_of_the_file(tmp_path: Path) -> None:
    def other(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
        return 0.1

    first, second = (sp.selftest(one, ["plain net"]) for one in (clean, other))
    write(record([first], "first"), tmp_path / "kept.json")
    write(record([second], "second"), tmp_path / "kept.json")
    write(record([first], "again"), tmp_path / "kept.json")
    write(record([sp.selftest(other, ["detector", "quantizer"])], "more"), tmp_path / "kept.json")
    tests = read(tmp_path / "kept.json")["tests"]
    assert [(test["evaluator"], test["command"]) for test in tests] == [
        ("clean", "again"),
        ("other", "more"),
    ]
    assert [line["case"] for line in tests[1]["lines"]] == ["plain net", "quantizer", "detector"]


def test_a_wrong_number_with_a_warning_is_printed_in_bold_italics() -> None:
    def warning(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> Report:
        return Report(0.9, holds=False)

    assert "***90.0***" in text(record([sp.selftest(warning, ["plain net"])]))


def test_a_missing_library_is_rejected_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = Peer("Absent", "no-such-package", "no_such_module", PEERS["art"].evaluate)
    monkeypatch.setitem(PEERS, "absent", absent)
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps no-such-package"):
        evaluators(["ours", "absent"])
    with pytest.raises(
        ValueError, match="there is no evaluator 'unknown'; available: ours, autoattack"
    ):
        evaluators(["unknown"])


@pytest.mark.parametrize("name", ["autoattack", "foolbox"])
def test_another_library_finds_the_truth_of_a_plain_net(name: str) -> None:
    try:
        PEERS[name].require_installed()
    except ModuleNotFoundError as missing:
        pytest.skip(str(missing))
    small = Case("small", "", lambda: _first_20(CASES[0]), CASES[0].defense, CASES[0].truth)
    found = sp.selftest(PEERS[name], [small])
    assert found.passed
    assert PEERS[name].package in found.versions


def _first_20(case: Case) -> object:
    problem = case.problem()
    return replace(problem, x=problem.x[:20], y=problem.y[:20])
