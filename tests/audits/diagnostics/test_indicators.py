"""Indicators of attack failure on curves with known values."""

from __future__ import annotations

import pytest
import torch

from saddlepoint.audits.diagnostics.indicators import (
    break_point_angle,
    decreasing_share,
    equal_neighbors,
    late_increase,
    overshot,
    relative_change,
    silent_success,
    zero_gradient_share,
)

STEPS = 41
LINE = torch.linspace(0, 1, STEPS, dtype=torch.float64)
AT_ONCE = (LINE > 0).double()
FLAT = torch.zeros(STEPS, dtype=torch.float64)


def columns(*curves):
    return torch.stack(curves, 1)


def test_late_increase_is_0_after_convergence_and_a_quarter_on_a_line():
    found = late_increase(columns(AT_ONCE, LINE, FLAT))
    expected = torch.tensor([0.0, 0.25, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_angle_is_about_90_degrees_after_convergence_and_180_on_a_line():
    angle = break_point_angle(columns(AT_ONCE, LINE, FLAT))
    # The bend of the first curve is one step right of the corner (0, 1):
    # arccos(-(1/40) / sqrt(1 + 1/40^2)) = 91.4 degrees.
    expected = torch.tensor([91.432, 180.0, 180.0], dtype=torch.float64)
    torch.testing.assert_close(angle, expected, rtol=0, atol=1e-3)


def test_the_angle_does_not_depend_on_the_scale_of_the_loss():
    curve = 1 - (-5 * LINE).exp()
    angle = break_point_angle(columns(curve, 1e6 * curve - 3, 1e-6 * curve))
    torch.testing.assert_close(angle, angle[:1].expand(3), rtol=0, atol=1e-3)
    assert 90 < angle[0] < 135


def test_convergence_counts_the_best_value_so_far_and_oscillation_counts_decreases():
    oscillating = AT_ONCE - 0.5 * (torch.arange(STEPS) % 2)
    assert late_increase(columns(oscillating)) == 0
    assert decreasing_share(columns(oscillating, LINE, FLAT)).tolist() == [0.5, 0, 0]


def test_a_success_is_silent_if_another_point_is_returned():
    success = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 0, 0]]).bool()
    robust = torch.tensor([True, True, False])
    assert silent_success(success, robust).tolist() == [True, False, False]


def test_zero_gradients_are_counted_among_computed_gradients():
    nan = torch.nan
    gradient = torch.tensor([[0.0, 0.0, 1.0, nan], [nan, 1.0, 2.0, nan]], dtype=torch.float64)
    assert zero_gradient_share(gradient).tolist() == [1.0, 0.5, 0.0, 0.0]


def test_relative_changes_are_at_most_1():
    values = torch.tensor([[1.1, 9.0], [0.9, -9.0]])
    found = relative_change(values, torch.tensor([1.0, 1.0]))
    assert found.tolist() == pytest.approx([0.1, 1.0])


def test_a_line_is_overshot_if_its_last_point_is_not_the_highest():
    line = torch.tensor([[0.0, 3.0, 0.0], [1.0, 2.0, 0.0], [2.0, 1.0, 0.0]])
    assert overshot(line).tolist() == [False, True, False]
    assert equal_neighbors(line).tolist() == [0, 0, 1]
