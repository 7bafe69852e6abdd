"""Intervals and tests against their defining equations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.coverage import coverage

from saddlepoint.audits.statistics import (
    at_least_images,
    clopper_pearson,
    fewer_images,
    mcnemar,
    over_units,
    significantly_lower,
    wilson,
    wilson_bounds,
)


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (0.5, 1), (1.0, 500), (0.37, 200)])
def test_wilson_solves_its_equation(share, n):
    interval = wilson(share, n)
    z = 1.959963984540054
    for p in interval[:2]:
        assert abs(share - p) == pytest.approx(z * (p * (1 - p) / n) ** 0.5, abs=1e-9)


def test_wilson_contains_the_share_and_is_exact_at_both_ends_for_all_counts():
    for n in range(1, 2001):
        share = np.arange(n + 1) / n
        low, high = wilson_bounds(share, np.float64(n))
        assert low[0] == 0.0
        assert high[-1] == 1.0
        assert (low <= share).all()
        assert (share <= high).all()
        assert (low[1:] > 0).all()
        assert (high[:-1] < 1).all()


@pytest.mark.parametrize("n", [24, 64, 100, 500, 1000])
def test_wilson_of_one_share_equals_that_of_many(n):
    low, high = wilson_bounds(np.arange(n + 1) / n, np.float64(n))
    found = [wilson(k / n, n) for k in range(n + 1)]
    assert [one.low for one in found] == pytest.approx(low.tolist(), abs=1e-15)
    assert [one.high for one in found] == pytest.approx(high.tolist(), abs=1e-15)
    assert (found[0].low, found[-1].high) == (0.0, 1.0)
    assert all(one.low <= k / n <= one.high for k, one in enumerate(found))


def test_accuracies_are_compared_as_numbers_of_images():
    assert (1 / 49) * 49 < 1  # why products with n are not compared exactly
    for n in range(1, 2001):
        assert at_least_images(1 / n, 0.0, n, 1)
        assert fewer_images(0.0, 1 / n, n)
        assert fewer_images(0.5 - 0.001 / n, 0.5, n)  # one of a thousand draws of one image
        assert not fewer_images(0.1 + 0.2, 0.3, n)
        assert not fewer_images(0.3, 0.1 + 0.2, n)


def test_a_difference_is_significant_from_two_images_and_one_percent_on():
    more = torch.ones(300, dtype=torch.float64)
    fewer = more.clone()
    fewer[:20] -= 0.1  # twenty draws of ten, which sum to 2 up to rounding
    assert not significantly_lower(fewer, more)  # 0.67 %
    fewer[20:30] -= 0.1
    assert significantly_lower(fewer, more)
    assert significantly_lower(fewer[:20], more[:20])
    assert not significantly_lower(more[:0], more[:0])


def binomial_probability(n, p, counts):
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in counts)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (57, 100)])
def test_clopper_pearson_has_the_tails_of_its_level(k, n):
    low, high, level, _ = clopper_pearson(k, n, 0.9)
    at_least = binomial_probability(n, low, range(k, n + 1))
    at_most = binomial_probability(n, high, range(k + 1))
    assert at_least == pytest.approx(0.05 if k else 1, abs=1e-9)
    assert at_most == pytest.approx(0.05 if k < n else 1, abs=1e-9)
    assert level == 0.9


def test_mcnemar_counts_images_that_only_one_gets_right_and_returns_the_binomial_tails():
    first = torch.tensor([1.0] * 10 + [0.0] * 4 + [1.0] + [0.0] * 7)
    second = torch.tensor([1.0] * 10 + [0.0] * 4 + [0.0] + [1.0] * 7)
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (1, 7)
    assert found.p == pytest.approx(2 * (1 + 8) / 2**8, abs=1e-12)
    assert not found.second_better
    assert mcnemar(first[:10], second[:10]).p == 1
    with pytest.raises(ValueError, match="the same images twice"):
        mcnemar(first, second[:3])


def test_batches_of_equal_outcomes_make_the_interval_wider_and_it_names_them():
    correct = torch.tensor([1.0, 0.0]).repeat_interleave(50).repeat(5)  # ten batches of fifty
    group = torch.arange(10).repeat_interleave(50)
    independent = wilson(0.5, 500)
    wide = over_units(correct, group, "batch")
    # Ten independent outcomes instead of five hundred: sqrt(50) is 7.
    assert wide.high - wide.low > 4 * (independent.high - independent.low)
    assert "10 batches" in wide.covers
    assert over_units(correct, group, "example") == independent


def test_the_interval_of_a_single_stream_says_that_it_is_too_narrow():
    correct = torch.tensor([1.0, 0.0]).repeat(250)
    found = over_units(correct, torch.zeros(500, dtype=torch.long), "stream")
    assert found[:2] == wilson(0.5, 500)[:2]
    assert "too narrow" in found.covers


def test_units_that_agree_by_chance_do_not_make_the_interval_narrower():
    correct = torch.tensor([1.0, 0.0]).repeat(250)
    group = torch.arange(10).repeat_interleave(50)
    assert over_units(correct, group, "batch")[:2] == wilson(0.5, 500)[:2]


def test_batches_without_a_correct_image_do_not_exclude_a_correlation():
    """Two batches without a correct image are no 256 independent observations."""
    group = torch.arange(2).repeat_interleave(128)
    none = over_units(torch.zeros(256), group, "batch")
    every = over_units(torch.ones(256), group, "batch")
    assert none.low == 0.0
    assert none.high == pytest.approx(wilson(0, 256 / (1 + 127 * 0.2)).high, abs=1e-12)
    assert every[:2] == pytest.approx((1 - none.high, 1.0), abs=1e-12)


def test_batches_of_one_image_have_an_interval():
    correct = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    low, high, *_ = over_units(correct, torch.arange(5), "batch")
    assert 0 <= low < 0.6 < high <= 1


@pytest.mark.parametrize("correlation", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("accuracy", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("batches", [2, 4, 32])
def test_the_interval_over_batches_covers(batches, accuracy, correlation):
    """The record of `benchmarks.coverage` has all cells with more samples."""
    found = coverage(batches, 32, correlation, accuracy, samples=2000)
    assert found["coverage_batches"] >= 0.94


def test_the_table_of_coverages_has_the_numbers_of_its_record():
    root = Path(__file__).parents[2]
    record = json.loads((root / "benchmarks/records/coverage.json").read_text())
    page = (root / "docs/verdict.md").read_text()
    assert record["about"]["command"] in page
    assert min(cell["coverage_batches"] for cell in record["cells"]) >= 0.94
    for row in record["lowest"]:
        shares = [row[f"lowest_{name}"] for name in ("batches", "t", "independent")]
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
        assert f"| {row['batches']} | {cells} | {100 * row['width']:.0f} points |" in page
