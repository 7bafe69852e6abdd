"""FMN against exact distances."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.boundaries import attacked, images, linear, predictions
from tests.attacks.test_hyperplane import shortest
from torch.testing import assert_close

from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.spaces import Ball


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_the_distance_in_an_active_box_is_that_of_a_linear_or_quadratic_program(p):
    defense = linear(d=6, seed=11)
    x = images(d=6, low=0.0, high=0.15)
    y = predictions(defense, x)
    space = Ball(p, 50.0)
    weight = defense.net.weight
    z = defense.net(x)
    rows = torch.arange(len(x))
    normal = weight[1 - y] - weight[y]
    rise = z[rows, y] - z[rows, 1 - y]
    wanted = torch.tensor(
        [shortest(x[i].numpy(), normal[i].numpy(), rise[i].item(), p) for i in rows],
        dtype=torch.float64,
    )
    found, _ = attacked(FMN(steps=500, search=20), defense, x, y, space)
    # The radius changes by `gamma_final` in the last steps, and the last points are not exactly at
    # the optimum of their ball.
    assert_close(space.size(found.point - x), wanted, rtol=5e-3, atol=0)


def test_invalid_settings_raise_an_error():
    with pytest.raises(ValueError, match="steps >= 1"):
        FMN(steps=0)
