"""Certificates of randomized smoothing against closed forms."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import norm

from saddlepoint.audits.diagnostics.smoothing import ABSTAINS, smoothing_certificate


def test_a_smoothed_linear_net_is_certified_below_its_distance_to_the_boundary():
    """The smoothed model of a linear net is the net itself. Its robust radius is the distance d to
    the boundary, and P(f = c) = Phi(d / sigma). With 2000 draws at alpha = 0.001, the bound on p
    costs at most about 4.5 sqrt(p (1 - p) / 2000): less than 0.2 sigma where p < 0.95."""
    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    sigma = 0.5
    x = torch.tensor([[0.06, 0.08], [0.3, 0.4], [-0.3, -0.4], [0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 0])

    def net(v):
        return torch.stack([v @ w, -(v @ w)], 1)

    found = smoothing_certificate(net, x, y, sigma=sigma, samples=2000)
    distance = (x @ w).abs() / 5
    assert (found.radius <= distance).all()
    assert found.radius[1] > distance[1] - 0.2 * sigma
    assert found.predicted.tolist()[1:] == [0, 1, ABSTAINS]
    assert found.correct.tolist()[1:] == [True, False, False]
    assert found.accuracy(0.0) == (0.5 if found.correct[0] else 0.25)
    assert found.accuracy(2.0) == 0


def test_a_radius_never_exceeds_what_the_draws_can_prove():
    def constant(v):
        return torch.stack([v[:, 0] * 0 + 1, v[:, 0] * 0], 1)

    x = torch.rand(12, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = smoothing_certificate(constant, x, torch.zeros(12).long(), sigma=1, samples=500)
    largest = norm.ppf(0.001 ** (1 / 500))  # p_A with p_A^500 = alpha
    expected = torch.full((12,), largest, dtype=torch.float64)
    torch.testing.assert_close(found.radius, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("wrong", [{"sigma": 0}, {"samples": 0}, {"selection": 0}, {"alpha": 1}])
def test_arguments_out_of_range_are_rejected(wrong):
    arguments = {"sigma": 1.0, **wrong}
    with pytest.raises(ValueError, match="0 < alpha < 1"):
        smoothing_certificate(lambda v: v, torch.zeros(1, 2), torch.zeros(1).long(), **arguments)
