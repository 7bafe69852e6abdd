"""Targets that treat images with 8-bit pixel values differently from all other points."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.target.pixel_grid import on_grid, snapped
from saddlepoint.audits.verdict import SymptomName, Verdict
from saddlepoint.rng import Keys
from saddlepoint.selftests.problem import four_classes, worst_margins

LEVELS = 255
RADIUS = 0.021  # 5.4 levels: not a multiple of one
PROBLEM = four_classes(60, RADIUS)
X = (PROBLEM.x * LEVELS).round() / LEVELS
PROBLEM = replace(PROBLEM, x=X, y=PROBLEM.net()(X).argmax(1))


class RobustOffGrid(nn.Module):
    """The net for 8-bit images; the label of the nearest image for all others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PROBLEM.net()

    def forward(self, x: Tensor) -> Tensor:
        levels = x.detach() * LEVELS
        tampered = ((levels - levels.round()).abs().flatten(1).amax(1) > 1e-3)[:, None]
        nearest = torch.cdist(x.flatten(1), X.flatten(1)).argmin(1)
        label = nn.functional.one_hot(PROBLEM.y[nearest], 4).to(x)
        return torch.where(tampered, 5 * label, self.net(x))


def test_points_are_snapped_to_levels_inside_the_ball() -> None:
    space = sp.Linf(RADIUS)
    x = X[:4]
    points = space.sample(x, Keys.of(0, torch.arange(4)))
    found = snapped(points, x, space)
    assert on_grid(found)
    assert not on_grid(points)
    assert float((found - x).abs().amax()) <= RADIUS
    assert float(found.amin()) >= 0
    assert float(found.amax()) <= 1


@pytest.mark.slow
def test_a_target_that_is_robust_off_the_grid_is_attacked_on_the_grid() -> None:
    result = sp.audit(RobustOffGrid().eval(), X, PROBLEM.y, threat=sp.Linf(RADIUS))
    whole = int(RADIUS * LEVELS) / LEVELS
    x = X.flatten(1).double()
    low = (x - whole).clamp(min=0)
    high = (x + whole).clamp(max=1)
    margins = worst_margins(PROBLEM.weight, PROBLEM.bias, low, high, PROBLEM.y)
    truth = float((margins < 0).double().mean())
    assert truth < 0.9
    assert result.robust_accuracy == pytest.approx(truth, abs=0.02)
    assert result.verdict is not Verdict.CREDIBLE
    assert SymptomName.JUMPS in {symptom.name for symptom in result.symptoms}


def test_outputs_of_a_plain_net_do_not_jump() -> None:
    traits = sp.probe(PROBLEM.net(), X, PROBLEM.y, threat=sp.Linf(RADIUS))
    assert TraitName.JUMPS not in traits
