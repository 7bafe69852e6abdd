"""Loss curves on the page show their record; attacks without a record are named."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from tests.reports.audits import a_loss_curve, an_audit
from tests.reports.test_html import Page

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.phrases import percent_cell, relative
from saddlepoint.reports.context import ReportContext
from saddlepoint.reports.html import page
from saddlepoint.reports.sections.loss_curves import loss_curves


def section(*curves):
    """The section of an audit with one attack per curve."""
    audit = an_audit(n=20)
    rows = tuple(
        replace(row, loss_curve=curve) for row, curve in zip(audit.rows, curves, strict=False)
    )
    return loss_curves(ReportContext(replace(audit, rows=rows)))


def paths(drawn):
    """The points of every curve."""
    return [
        [tuple(float(number) for number in place.split()) for place in path[1:].split("L")]
        for path in re.findall(r'<path d="([^"]*)" class="line">', drawn.body[0])
    ]


def test_a_curve_spans_its_panel_from_the_lowest_to_the_highest_value_in_proportion():
    (value, share) = paths(section(a_loss_curve(20, 40)))
    curve = a_loss_curve(20, 40)
    assert len(value) == 39  # the first of 40 points has no value
    assert len(share) == 40
    bottom = value[0][1]
    top = value[-1][1]
    first = curve.known[0][1]
    last = curve.known[-1][1]
    for (x, y), (passes, known) in zip(value, curve.known, strict=True):
        # Coordinates are written with one decimal.
        assert x == pytest.approx(230 + 290 * passes / 40, abs=0.051)
        assert y == pytest.approx(
            bottom + (top - bottom) * (known - first) / (last - first), abs=0.11
        )
    height = bottom - top  # of a share of 100 %
    assert share[-1][1] == pytest.approx(bottom - height * curve.misclassified[-1], abs=0.11)


def test_the_numbers_beside_the_curves_are_those_of_the_record():
    curve = a_loss_curve(20, 40)
    audit = an_audit(n=20)
    one_row = replace(audit, rows=(replace(audit.rows[0], loss_curve=curve),))
    words = Page(page(ReportContext(one_row))).words
    first = curve.known[0][1]
    last = curve.known[-1][1]
    slope = relative(curve.final_slope)
    misclassified = f"{percent_cell(curve.misclassified[-1])}"
    assert f"apgd-ce 20 40 {first:.4g} {last:.4g} {slope} {misclassified}" in words
    # The description of the figure, for screen readers:
    assert f"apgd-ce: value {first:.3g} to {last:.3g} in 40 passes" in words


def test_curves_without_values_with_a_single_value_and_without_increase_are_drawn():
    decisions = LossCurve((1, 2), (5, 5), (0.0, 0.2), (None, None))
    single = LossCurve((1, 2), (5, 5), (0.0, 0.2), (None, -3.0))
    flat = LossCurve((1, 2), (5, 5), (0.0, 0.2), (-3.0, -3.0))
    drawn = section(decisions, single, flat)
    assert "decision-based" in drawn.body[0]
    assert drawn.body[0].count("<circle") == 1
    assert len(paths(drawn)) == 4  # three shares, one value
    assert [curve.final_slope for curve in (decisions, single, flat)] == [None] * 3


def test_attacks_without_a_recorded_curve_are_named():
    text = "".join(section(a_loss_curve(20, 10), LossCurve()).body)
    assert "No loss curve was recorded for apgd-dlr." in text
    assert section(LossCurve(), LossCurve()) is None


def test_the_final_slope_is_one_on_a_line_and_half_with_a_fifth_of_the_increase_to_come():
    passes = tuple(range(1, 1002))
    ones = (1,) * 1001
    zeros = (0.0,) * 1001
    line = LossCurve(passes, ones, zeros, tuple(3.0 * p for p in passes))
    assert line.final_slope == pytest.approx(1, abs=1e-12)
    # 1 - exp(-u t) at u = 1.6: exp(-1.6) = 0.202 is still to come, and the final slope is half the
    # mean; u = 1.594 solves it exactly.
    values = tuple(1 - math.exp(-1.594 * (p - 1) / 1000) for p in passes)
    assert LossCurve(passes, ones, zeros, values).final_slope == pytest.approx(0.5, abs=1e-3)
