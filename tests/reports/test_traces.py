"""Loss traces on the page: every curve shows its record, and what was not written down is said."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from saddlepoint.reports.sections.climbs import climbs
from tests.reports.audits import an_ascent, an_audit
from tests.reports.test_html import Page

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.reports.context import Subject
from saddlepoint.reports.html import page


def part(*ascents):
    audit = an_audit(n=20)
    rows = tuple(
        replace(row, loss_curve=loss_curve)
        for row, loss_curve in zip(audit.rows, ascents, strict=False)
    )
    return climbs(Subject(replace(audit, rows=rows)))


def paths(drawn):
    """The points of every curve."""
    return [
        [tuple(float(number) for number in place.split()) for place in path[1:].split("L")]
        for path in re.findall(r'<path d="([^"]*)" class="line">', drawn.body[0])
    ]


def test_a_curve_goes_from_the_lowest_value_to_the_highest_and_keeps_its_proportions():
    (value, share) = paths(part(an_ascent(20, 40)))
    loss_curve = an_ascent(20, 40)
    assert len(value) == 39  # of 40 places the first has no value
    assert len(share) == 40
    bottom = value[0][1]
    top = value[-1][1]
    first = loss_curve.known[0][1]
    last = loss_curve.known[-1][1]
    for (x, y), (passes, known) in zip(value, loss_curve.known, strict=True):
        # Coordinates are written with one decimal.
        assert x == pytest.approx(230 + 290 * passes / 40, abs=0.051)
        assert y == pytest.approx(
            bottom + (top - bottom) * (known - first) / (last - first), abs=0.11
        )
    whole = bottom - top  # a share of one would be as high
    assert share[-1][1] == pytest.approx(bottom - whole * loss_curve.fooled[-1], abs=0.11)


def test_the_numbers_beside_the_curves_are_those_of_the_record():
    loss_curve = an_ascent(20, 40)
    words = Page(
        page(
            Subject(
                replace(
                    an_audit(n=20), rows=(replace(an_audit(n=20).rows[0], loss_curve=loss_curve),)
                )
            )
        )
    ).words
    first = loss_curve.known[0][1]
    last = loss_curve.known[-1][1]
    assert (
        f"apgd-ce 20 40 {first:.4g} {last:.4g} {100 * loss_curve.pace:.0f} % {100 * loss_curve.fooled[-1]:.1f} %"
        in words
    )
    assert (
        f"apgd-ce: value {first:.3g} to {last:.3g} in 40 passes" in words
    )  # for those who hear the figure


def test_attacks_without_values_or_with_one_alone_or_without_a_rise_are_drawn():
    decisions = LossCurve((1, 2), (5, 5), (0.0, 0.2), (None, None))
    single = LossCurve((1, 2), (5, 5), (0.0, 0.2), (None, -3.0))
    flat = LossCurve((1, 2), (5, 5), (0.0, 0.2), (-3.0, -3.0))
    drawn = part(decisions, single, flat)
    assert "asks for decisions" in drawn.body[0]
    assert drawn.body[0].count("<circle") == 1
    assert len(paths(drawn)) == 4  # three shares, one value
    assert [loss_curve.pace for loss_curve in (decisions, single, flat)] == [None] * 3


def test_attacks_of_which_nothing_was_written_down_are_named():
    assert "Nothing was written down for apgd-dlr." in "".join(
        part(an_ascent(20, 10), LossCurve()).body
    )
    assert part(LossCurve(), LossCurve()) is None


def test_pace_is_one_on_a_straight_line_and_half_when_a_fifth_of_the_way_is_ahead():
    passes = tuple(range(1, 1002))
    line = LossCurve(passes, (1,) * 1001, (0.0,) * 1001, tuple(3.0 * p for p in passes))
    assert line.pace == pytest.approx(1, abs=1e-12)
    # 1 - exp(-u t) at u = 1.6: a fifth is left, exp(-1.6) = 0.202, and the end is half as steep; 1.594 solves it exactly.
    limit = LossCurve(
        passes,
        (1,) * 1001,
        (0.0,) * 1001,
        tuple(1 - 2.718281828459045 ** (-1.594 * (p - 1) / 1000) for p in passes),
    )
    assert limit.pace == pytest.approx(0.5, abs=1e-3)
