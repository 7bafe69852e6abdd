"""The L2 attack of Carlini and Wagner."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.boundaries import attacked, images, linear, linear_distance, predictions
from torch.testing import assert_close

from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.spaces import Ball


def test_the_euclidean_distance_to_a_linear_boundary_is_found():
    defense = linear()
    x = images(n=4, low=0.46, high=0.54)
    y = predictions(defense, x)
    space = Ball(2, 5.0)
    found, _ = attacked(CW(steps=200, learning_rate=5e-4, search=20), defense, x, y, space)
    # Steps of Adam do not shrink and move all 12 coordinates by the same amount. The direction is
    # off by an angle of one step, 9e-4, over the distance of at least 1e-2; half its square is
    # lost.
    assert_close(space.size(found.point - x), linear_distance(defense, x, y, 2), rtol=4e-3, atol=0)


def test_the_margin_reaches_the_required_confidence():
    defense = linear()
    x = images(n=4)
    y = predictions(defense, x)
    found, _ = attacked(
        CW(steps=100, rounds=6, constant=0.1, confidence=0.3), defense, x, y, Ball(2, 5.0)
    )
    reached = margin(defense.net(found.point), y)
    assert (reached >= 0.3).all()
    assert (reached < 0.4).all()


@pytest.mark.parametrize("p", [1, math.inf])
def test_other_norms_raise_an_error_before_any_query(p):
    defense = linear()
    x = images()
    with pytest.raises(ValueError, match="CW minimizes the L2 norm"):
        attacked(CW(), defense, x, torch.zeros(16, dtype=torch.long), Ball(p, 1.0), limit=0)


def test_invalid_settings_raise_an_error():
    with pytest.raises(ValueError, match="rounds >= 1"):
        CW(rounds=0)
