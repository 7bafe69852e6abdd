"""Points of large L1 balls: their size is not lost to rounding."""

from __future__ import annotations

import pytest
import torch

from saddlepoint.attacks.spaces import L1


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize("radius", [12.0, 100.0, 1536.0])
def test_a_projected_point_is_in_the_set(radius: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(16, 3, 32, 32, generator=generator)
    far = x + scale * torch.randn(x.shape, generator=generator)
    space = L1(radius)
    point = space.project(far, x)
    assert space.contains(point, x).all()
    exact = (point.double() - x.double()).flatten(1).abs().sum(1)
    assert torch.allclose(space.size(point - x).double(), exact, rtol=1e-6)
