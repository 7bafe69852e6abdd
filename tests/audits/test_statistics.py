"""Intervals and tests against their defining equations."""

from __future__ import annotations

import math

import pytest
import torch

from saddlepoint.audits.statistics import clopper_pearson, mcnemar, over_units, wilson


@pytest.mark.parametrize(("share", "n"), [(0.0, 10), (0.5, 1), (1.0, 500), (0.37, 200)])
def test_wilson_solves_its_equation(share, n):
    interval = wilson(share, n)
    z = 1.959963984540054
    for p in interval[:2]:
        assert abs(share - p) == pytest.approx(z * (p * (1 - p) / n) ** 0.5, abs=1e-9)


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
