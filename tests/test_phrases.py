"""Numbers in sentences: exact at 0, 1 and all, in agreement with their nouns, and never NaN."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saddlepoint import phrases
from saddlepoint.phrases import (
    agree,
    at_least,
    at_most,
    cosine,
    count,
    count_of,
    how_often,
    mean_count,
    names,
    number,
    percent,
    percent_cell,
    percent_range,
    points,
    points_more,
    radius,
    relative,
    signed,
    signed_points,
    times,
    whole,
)

SHARES = st.floats(0, 1)
COUNTS = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("n", "noun", "text"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (1.0, "image", "1 image"),
        (3, "branch", "3 branches"),
        (2, "query", "2 queries"),
        (2, "day", "2 days"),
        (2, "class", "2 classes"),
        (2, "matrix", "2 matrices"),
        (2, "epoch", "2 epochs"),
        (2, "pass", "2 passes"),
        (4, "clean copy", "4 clean copies"),
        (9999, "step", "9999 steps"),
        (12_000, "query", "12,000 queries"),
    ],
)
def test_a_noun_agrees_with_its_count(n, noun, text):
    assert count(n, noun) == text


def test_a_plural_can_be_given():
    assert count(2, "run of it", "runs of it") == "2 runs of it"
    assert count(1, "run of it", "runs of it") == "1 run of it"


@given(COUNTS)
def test_only_one_is_singular(n):
    shown = count(n, "image")
    assert shown.endswith(" image") == (n == 1)
    assert int(shown.split()[0].replace(",", "")) == n
    assert agree(n, "is", "are") == ("is" if n == 1 else "are")


@pytest.mark.parametrize(
    ("n", "total", "text"),
    [
        (0, 64, "none of 64 images"),
        (1, 64, "1 of 64 images"),
        (64, 64, "64 of 64 images"),
        (1, 1, "1 of 1 image"),
        (0, 1, "none of 1 image"),
        (0, 0, "none of 0 images"),
        (0.4, 40, "0.4 of 40 images (mean over draws)"),
        (0.02, 40, "less than 0.1 of 40 images (mean over draws)"),
        (39.99, 40, "more than 39.9 of 40 images (mean over draws)"),
        (3 + 1e-12, 40, "3 of 40 images"),
        (40 + 1e-7, 40, "40 of 40 images"),
    ],
)
def test_a_part_of_a_count(n, total, text):
    assert count_of(n, total, "image") == text


@given(st.integers(1, 10**4), SHARES)
def test_a_fractional_part_is_shown_as_a_mean_and_a_whole_one_is_not(total, share):
    n = share * total
    is_whole = abs(n - round(n)) < 1e-6
    shown = count_of(n, total, "image")
    assert ("mean over draws" in shown) != is_whole
    assert not shown.startswith(("0 ", "0.0 "))


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "never"), (1, "once"), (2, "2 times"), (2.5, "on average 2.5 times")],
)
def test_how_often(n, text):
    assert how_often(n) == text


def test_a_mean_of_counts():
    assert mean_count(1, "image") == "1 image"
    assert mean_count(0.4, "image") == "on average 0.4 images"
    assert mean_count(0.01, "image") == "on average less than 0.1 images"


@pytest.mark.parametrize(
    ("share", "text", "cell", "most", "least"),
    [
        (0.0, "0 %", "0 %", "≤ 0 %", "≥ 0 %"),
        (1e-12, "0 %", "0 %", "≤ 0 %", "≥ 0 %"),
        (0.0004, "less than 0.1 %", "< 0.1 %", "≤ 0.1 %", "> 0 %"),
        (0.001, "0.1 %", "0.1 %", "≤ 0.1 %", "≥ 0.1 %"),
        (0.453, "45.3 %", "45.3 %", "≤ 45.3 %", "≥ 45.3 %"),
        (0.999, "99.9 %", "99.9 %", "≤ 99.9 %", "≥ 99.9 %"),
        (0.9996, "more than 99.9 %", "> 99.9 %", "< 100 %", "≥ 99.9 %"),
        (1 - 1e-12, "100 %", "100 %", "≤ 100 %", "≥ 100 %"),
        (1.0, "100 %", "100 %", "≤ 100 %", "≥ 100 %"),
    ],
)
def test_zero_and_a_hundred_percent_are_exact(share, text, cell, most, least):
    assert percent(share) == text
    assert percent_cell(share) == cell
    assert at_most(share) == most
    assert at_least(share) == least


def test_whole_percentages_have_the_same_edges():
    shown = [percent(share, 0) for share in (0, 0.004, 0.453, 0.996, 1)]
    assert shown == ["0 %", "less than 1 %", "45 %", "more than 99 %", "100 %"]


@given(st.integers(1, 10**6), st.data())
def test_a_percentage_of_a_count_is_0_or_100_only_if_none_or_all_are_meant(total, data):
    n = data.draw(st.integers(0, total))
    for decimals in (0, 1, 2):
        shown = percent(n / total, decimals)
        assert (shown == "0 %") == (n == 0)
        assert (shown == "100 %") == (n == total)
        assert not re.fullmatch(r"(0\.0+|100\.0+) %", shown)


@given(SHARES, SHARES)
def test_bounds_hold_at_the_ends(share, other):
    """Where the share is rounded to 0 or 100, the bound is still true."""
    upper = float(re.findall(r"[\d.]+", at_most(share))[0])
    lower = float(re.findall(r"[\d.]+", at_least(share))[0])
    assert 100 * share <= upper + 0.05 + 1e-6
    assert 100 * share >= lower - 0.05 - 1e-6
    assert percent_range(min(share, other), max(share, other)).endswith(" %")


def test_a_range_of_percentages():
    assert percent_range(0, 0.036) == "0 to 3.6 %"
    assert percent_range(0.964, 1) == "96.4 to 100 %"
    assert percent_range(0.2, 0.3, " – ") == "20.0 – 30.0 %"


@pytest.mark.parametrize(
    ("difference", "text"),
    [(0.0, "0 points"), (0.0002, "less than 0.1 points"), (0.031, "3.1 points")],
)
def test_points(difference, text):
    assert points(difference) == text


@given(st.floats(-1, 0))
def test_a_negative_difference_changes_the_sentence(difference):
    assert points_more(difference) == "no more"


def test_differences_with_a_sign():
    shown = [signed_points(d) for d in (0.031, -0.002, 0.0, -0.0001)]
    assert shown == ["+3.1 points", "-0.2 points", "0 points", "about 0 points"]
    assert points_more(0.031) == "3.1 points more"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 times"),
        (0.003, "less than 0.01 times"),
        (0.04, "0.04 times"),
        (0.999, "1.0 times"),
        (1, "1.0 times"),
        (9.96, "10 times"),
        (12.3, "12 times"),
        (12_345, "12,345 times"),
    ],
)
def test_ratios(ratio, text):
    assert times(ratio) == text


@given(st.floats(1e-9, 1e9))
def test_a_positive_ratio_is_never_shown_as_zero(ratio):
    assert not re.match(r"0(\.0+)? ", times(ratio))


@pytest.mark.parametrize(
    ("value", "text"),
    [(8 / 255, "8/255"), (1 / 255, "1/255"), (0.5, "0.5"), (0.2, "0.2"), (0.3, "0.3"), (0, "0")],
)
def test_radii(value, text):
    assert radius(value) == text


@given(st.integers(1, 255))
def test_a_radius_in_255ths_is_shown_exactly(k):
    numerator, _, denominator = radius(k / 255).partition("/")
    assert math.isclose(float(numerator) / float(denominator or 1), k / 255, rel_tol=1e-9)


def test_any_other_radius_has_three_digits():
    assert radius(0.123456) == "0.123"


def test_any_ratio_as_a_percentage():
    shown = [relative(r) for r in (0, 0.001, -0.001, 0.5, 2.5, -0.12)]
    assert shown == ["0 %", "about 0 %", "about 0 %", "50 %", "250 %", "-12 %"]
    assert relative(1.234, 1) == "123.4 %"


def test_measured_values_may_be_infinite_or_undefined():
    assert number(0.01234) == "0.012"
    assert number(math.inf) == "infinity"
    assert number(-math.inf) == "-infinity"
    assert number(math.nan) == "NaN"
    assert relative(math.nan) == "NaN %"
    assert cosine(math.nan) == "NaN"
    assert cosine(-0.001) == "0.00"
    assert cosine(-0.31) == "-0.31"


@pytest.mark.parametrize(
    ("items", "text"),
    [([], ""), (["a"], "a"), (["a", "a"], "a"), (["a", "b"], "a and b"), ("abc", "a, b and c")],
)
def test_names_in_a_list(items, text):
    assert names(items) == text


def test_a_long_list_is_cut():
    assert names("abcd", limit=3) == "a, b, c and 1 other"
    assert names("abcde", limit=3) == "a, b, c and 2 others"
    assert names("abc", limit=3) == "a, b and c"


@pytest.mark.parametrize("wrong", [math.nan, -1.0, -0.01])
@pytest.mark.parametrize(
    "render",
    [
        lambda n: count(n, "image"),
        lambda n: count_of(n, 4, "image"),
        lambda n: mean_count(n, "image"),
        whole,
        how_often,
        times,
        percent,
        percent_cell,
        at_most,
        at_least,
        points,
        radius,
        lambda share: percent_range(share, 1),
    ],
)
def test_what_no_measurement_can_give_is_rejected(render, wrong):
    with pytest.raises(ValueError, match="expected "):
        render(wrong)


@pytest.mark.parametrize("render", [signed, points_more, percent])
@pytest.mark.parametrize("wrong", [math.nan, 1.01, -1.01, math.inf])
def test_a_share_beyond_one_is_rejected(render, wrong):
    with pytest.raises(ValueError, match="expected "):
        render(wrong)


def test_a_count_has_no_fraction_and_a_part_is_not_larger_than_the_whole():
    with pytest.raises(ValueError, match="expected a count"):
        count(0.4, "image")
    with pytest.raises(ValueError, match="expected a count from 0 to 3"):
        count_of(4, 3, "image")
    with pytest.raises(ValueError, match="finite"):
        times(math.inf)
    with pytest.raises(ValueError, match="finite"):
        radius(math.inf)


@given(st.floats())
def test_nothing_but_a_value_error_is_raised(value):
    for render in (
        percent,
        points,
        points_more,
        signed,
        times,
        how_often,
        radius,
        number,
        relative,
    ):
        try:
            assert render(value)
        except ValueError as error:
            assert str(error).startswith("expected ")  # noqa: PT017 - any value may be valid


def test_every_public_function_has_a_docstring():
    public = [one for name, one in vars(phrases).items() if name.islower() and name[0] != "_"]
    ours = [one for one in public if getattr(one, "__module__", "") == phrases.__name__]
    assert ours
    assert all(one.__doc__ for one in ours)
