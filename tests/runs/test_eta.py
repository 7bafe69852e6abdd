"""Estimates of the remaining time, for runs of known length."""

from __future__ import annotations

import math

import pytest

from saddlepoint.runs.eta import TimeEstimate, duration, remaining


def test_after_the_first_group_the_estimate_is_exact():
    # Two groups of 10 images; attack 1 costs 1 s per image, attack 2 costs 3 s.
    estimate = TimeEstimate([(a, 10) for _ in range(2) for a in (0, 1, 2)])
    estimate.add(0, 10, 0.0)
    estimate.add(1, 10, 10.0)
    estimate.add(2, 10, 30.0)
    assert estimate.left(elapsed=40.0) == pytest.approx(40.0)


def test_two_workers_need_half_the_time():
    estimate = TimeEstimate([(1, 10), (1, 10), (1, 10), (1, 10)])
    estimate.add(1, 10, 10.0)
    estimate.add(1, 10, 10.0)
    assert estimate.left(elapsed=10.0) == pytest.approx(10.0)  # both ran at once


def test_an_adversary_that_has_not_run_is_assumed_to_be_average():
    estimate = TimeEstimate([(1, 10), (2, 10), (3, 10)])
    estimate.add(1, 10, 10.0)
    estimate.add(2, 10, 30.0)
    assert estimate.left(elapsed=40.0) == pytest.approx(20.0)


def test_clean_images_give_no_estimate_for_attacks():
    estimate = TimeEstimate([(0, 10), (1, 10)])
    estimate.add(0, 10, 0.1)
    assert estimate.left(elapsed=0.1) == math.inf
    assert remaining(math.inf) == "time left unknown"


def test_a_finished_run_has_no_time_left():
    assert TimeEstimate([]).left(elapsed=1.0) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_as_text(seconds, text):
    assert duration(seconds) == text
