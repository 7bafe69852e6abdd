"""Projections do not depend on the batch."""

from __future__ import annotations

import pytest
import torch
from tests.attacks.toys import images, weights

from saddlepoint.attacks.spaces import Ball


@pytest.mark.parametrize("p", [1, 2, float("inf")])
def test_projection_of_a_row_does_not_depend_on_its_batch(p: float) -> None:
    """Bit for bit, although rows near the box take more iterations than others."""
    x = images(64, 12)
    space = Ball(p, 0.7)
    far = x + weights(64 * 12).view(64, 12)
    together = space.project(far, x)
    assert torch.equal(
        together, torch.cat([space.project(far[i : i + 1], x[i : i + 1]) for i in range(64)])
    )
