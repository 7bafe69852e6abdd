"""Comparison of a record with a second run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks import rerun_records
from benchmarks.refresh_records import record_files
from benchmarks.rerun_records import candidates, compared

from saddlepoint.papers import EXPERIMENTS
from saddlepoint.papers.result import Cell, Result, Row, Table, read


def result(value: float, seconds: float = 1.0) -> Result:
    accuracy = Table("Accuracy", ("net",), ("PGD", "time, ×"), (row(value, seconds),), 64)
    cost = Table("Cost of one inference", ("net",), ("PGD", "time, ×"), (row(9, seconds),), 0)
    some = record_files()[0]
    return replace(read(some.read_text(), str(some)), tables=(accuracy, cost))


def row(value: float, seconds: float) -> Row:
    return Row(("a",), (Cell((value,), interval=(value - 1, value + 1)), Cell((seconds,))))


def test_equal_runs_have_equal_numbers_whatever_their_time() -> None:
    found = compared(result(50.0, 1.0), result(50.0, 2.0))
    assert (found["numbers"], found["equal"], found["largest difference"]) == (3, 3, 0)


def test_a_changed_number_is_reported() -> None:
    found = compared(result(50.0), result(52.5))
    assert (found["numbers"], found["equal"], found["largest difference"]) == (3, 0, 2.5)


def test_only_records_of_experiments_that_can_be_run_are_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rerun_records, "objection", lambda _: "")
    found = candidates(200)
    assert all(one.seconds <= 200 for one in found.values())
    assert all(one.experiment in EXPERIMENTS and not one.not_run for one in found.values())
    assert len(found) < len(candidates(1e9))
