"""A finding says "as in the paper" only if direction, size and order are the paper's."""

from __future__ import annotations

import pytest

from saddlepoint.audits.statistics import wilson
from saddlepoint.papers.comparison import (
    Agreement,
    BaseNetwork,
    Measured,
    base_networks,
    compare_effect,
    compare_level,
    compare_order,
    distant_bases,
    summary,
)
from saddlepoint.papers.result import Cell, Row, Table


def test_a_measured_effect_is_compared_in_direction_and_size() -> None:
    absent = compare_effect(Measured(0.0, 0.0, 0.0), 97.1)
    assert absent.agreement is Agreement.DIFFERS
    assert absent.text.endswith("in the paper +97.1: against the paper in direction and size")
    smaller = compare_effect(Measured(20.0, 5.0, 50.0), 97.1)
    assert smaller.text.endswith("against the paper in size")
    reversed_ = compare_effect(Measured(-4.0, -6.0, -2.0), 5.0)
    assert reversed_.text.endswith("against the paper in direction")
    equal = compare_effect(Measured(95.0, 88.0, 98.0), 97.1)
    assert equal.agreement is Agreement.AGREES


def test_an_interval_around_zero_and_around_the_paper_decides_nothing() -> None:
    assert compare_effect(Measured(2.0, -6.0, 10.0), 3.0).agreement is Agreement.UNDECIDED


def test_a_published_effect_of_zero_has_no_direction() -> None:
    assert compare_effect(Measured(-0.5, -2.0, 1.0), 0.3).agreement is Agreement.AGREES


@pytest.mark.parametrize(
    ("measured", "agreement"),
    [
        (Measured(90.0, 85.0, 94.0), Agreement.AGREES),
        (Measured(90.0, 59.6, 98.2), Agreement.UNDECIDED),  # ten images
        (Measured(20.0, 5.7, 51.0), Agreement.DIFFERS),
        (Measured(85.0, 78.0, 90.0), Agreement.UNDECIDED),
    ],
)
def test_levels_agree_within_the_tolerance_and_differ_beyond_the_interval(
    measured: Measured, agreement: Agreement
) -> None:
    found = compare_level(measured, 97.0)
    assert found.agreement is agreement
    assert found.text.endswith(f": {agreement}")


def test_a_reversed_order_of_attacks_is_against_the_paper() -> None:
    published = {"AA": 64.4, "PGD": 59.5, "FPA": 59.3}
    reversed_ = {
        "AA": Measured(62.5, 60.0, 65.0),
        "PGD": Measured(77.3, 74.0, 80.0),
        "FPA": Measured(75.0, 72.0, 78.0),
    }
    found = compare_order(reversed_, published)
    assert found.agreement is Agreement.DIFFERS
    # PGD and FPA are equal in the paper, so two pairs are ordered.
    assert "holds in none of 2 pairs" in found.text
    assert "PGD (77.3 %) against AA (62.5 %)" in found.text
    same = {name: Measured(value, value, value) for name, value in published.items()}
    assert compare_order(same, published).agreement is Agreement.AGREES


def test_published_numbers_without_an_order_are_not_compared() -> None:
    measured = {"AVG": Measured(10, 5, 15), "MIN": Measured(12, 7, 17)}
    with pytest.raises(ValueError, match="have no order"):
        compare_order(measured, {"AVG": 0.5, "MIN": 0.8})


def test_the_interval_of_a_difference_is_that_of_newcombe() -> None:
    """Newcombe 1998, Table II (a): 56/70 - 48/80 has the interval 0.0524 to 0.3339 by method 10."""
    p, q = (
        Measured(100 * k / n, 100 * wilson(k / n, n).low, 100 * wilson(k / n, n).high)
        for k, n in ((56, 70), (48, 80))
    )
    difference = p.minus(q)
    assert difference.value == pytest.approx(20.0)
    assert difference.low == pytest.approx(5.24, abs=0.005)
    assert difference.high == pytest.approx(33.39, abs=0.005)


def test_an_order_within_the_intervals_is_not_decided() -> None:
    measured = {"AA": Measured(60, 50, 70), "PGD": Measured(62, 52, 72)}
    assert compare_order(measured, {"AA": 64.4, "PGD": 59.5}).agreement is Agreement.UNDECIDED


def test_distant_base_networks_are_marked_and_others_are_not() -> None:
    far = BaseNetwork("mnist tadv, AA", Measured(15.5, 11.1, 21.2), 86.6)
    close = BaseNetwork("mnist tadv, clean", Measured(96.0, 92.3, 98.0), 99.0)
    small_sample = BaseNetwork("mnist madry, AA", Measured(70.0, 39.7, 89.2), 87.7)
    (warning,) = distant_bases([far, close, small_sample])
    assert warning.startswith("mnist tadv, AA: 15.5 %, in the paper 86.6 %.")


def test_base_networks_are_read_from_the_columns_of_a_table() -> None:
    cells = (Cell((82.0,), 99.3, (77.0, 86.0)), Cell((50.0,), 97.0), None)
    table = Table("t", ("data",), ("clean", "AA", "PGD"), (Row(("mnist",), cells),), 256)
    (base,) = base_networks(table, ["clean", "PGD"])
    assert base == BaseNetwork("mnist, clean", Measured(82.0, 77.0, 86.0), 99.3)


def test_an_accuracy_without_an_interval_gets_that_of_its_images() -> None:
    table = Table("t", ("data",), ("AA",), (Row(("mnist",), (Cell((20.0,)),)),), 10)
    found = Measured.accuracy(table, ("mnist",), "AA")
    assert (round(found.low, 1), found.value, round(found.high, 1)) == (5.7, 20.0, 51.0)


def test_the_summary_counts_every_outcome() -> None:
    found = [
        compare_level(Measured(90, 88, 92), 90.0),
        compare_level(Measured(20, 18, 22), 90.0),
    ]
    assert summary(found) == (
        "1 of 2 comparisons agrees with the paper, 1 is against it, and none are undecided on "
        "these images"
    )
