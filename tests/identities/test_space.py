"""Perturbation sets: projections, samples, ascent directions and membership."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.problems import keys, normal, support, uniform
from torch import Tensor

from saddlepoint.attacks.spaces import L1, L2, Ball, Linf

NORMS = (1, 2, math.inf)
BOXES = ((0.0, 1.0), (-1.0, 1.0), (-0.3, 2.7), (-math.inf, math.inf))
# Coordinates are below 10 and dimensions below 7: a few hundred rounding errors of 1e-15.
TOLERANCE = 1e-12

thorough = settings(max_examples=150, deadline=None, derandomize=True, database=None)
number = st.floats(-4, 4, allow_subnormal=False)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Ball, Tensor, Tensor, Tensor]:
    """A set, its center and two arbitrary points, [1, d] each."""
    d = draw(st.integers(1, 6))
    row = st.lists(number, min_size=d, max_size=d).map(
        lambda v: torch.tensor([v], dtype=torch.float64)
    )
    box = draw(st.sampled_from(BOXES))
    radius = draw(st.one_of(st.just(0.0), st.floats(1e-3, 6)))
    return (
        Ball(draw(st.sampled_from(NORMS)), radius, box),
        draw(row).clamp(*box),
        draw(row),
        draw(row),
    )


@thorough
@given(problems())
def test_the_projection_is_the_nearest_point_of_the_set(
    problem: tuple[Ball, Tensor, Tensor, Tensor],
) -> None:
    """z is the projection of u if and only if <u - z, v - z> <= 0 for all v in the set.

    The maximum over v is a support function.
    """
    space, center, u, _ = problem
    z = space.project(u, center)
    assert space.size(z - center) <= space.radius + TOLERANCE
    assert ((z >= space.box[0] - TOLERANCE) & (z <= space.box[1] + TOLERANCE)).all()
    gap = support(u - z, center, space) - ((u - z) * (z - center)).sum(1)
    assert gap.abs() <= 10 * TOLERANCE  # ||z - z*||^2 <= 2 gap


@thorough
@given(problems())
def test_projection_is_idempotent_and_the_identity_inside(
    problem: tuple[Ball, Tensor, Tensor, Tensor],
) -> None:
    space, center, u, _ = problem
    z = space.project(u, center)
    torch.testing.assert_close(space.project(z, center), z, rtol=0, atol=TOLERANCE)
    within = center + 0.99 * (z - center)
    torch.testing.assert_close(space.project(within, center), within, rtol=0, atol=TOLERANCE)
    assert space.contains(z, center).all()
    assert space.contains(within, center).all()


@thorough
@given(problems())
def test_projection_does_not_increase_distances(
    problem: tuple[Ball, Tensor, Tensor, Tensor],
) -> None:
    space, center, u, v = problem
    apart = (space.project(u, center) - space.project(v, center)).norm()
    assert apart <= (u - v).norm() + TOLERANCE


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_projection_agrees_with_a_general_purpose_solver(p: float, seed: int) -> None:
    """SLSQP on the same problem: an error of 1e-12 in the objective is 1e-6 in the point."""
    center = uniform(seed, 1, 4)
    u = 0.5 + 1.5 * normal(seed + 50, 1, 4)
    space = Ball(p, 0.2 + 0.1 * seed)
    c = center[0].numpy()
    target = u[0].numpy()

    # With delta = plus - minus, the L1 ball is a linear constraint.
    def point(v: np.ndarray) -> np.ndarray:
        return c + v[:4] - v[4:]

    def room(v: np.ndarray) -> float:
        return float(
            space.radius - v.sum() if p == 1 else space.radius**2 - ((point(v) - c) ** 2).sum()
        )

    found = minimize(
        lambda v: ((point(v) - target) ** 2).sum(),
        np.zeros(8),
        bounds=[(0, 1 - k) for k in c] + [(0, k) for k in c],
        constraints={"type": "ineq", "fun": room},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(space.project(u, center)[0].numpy(), point(found.x), atol=2e-6)


def test_one_radius_per_example_equals_separate_sets() -> None:
    center = uniform(1, 5, 6)
    u = normal(2, 5, 6)
    radii = torch.tensor([0.0, 0.1, 0.4, 1.0, 3.0], dtype=torch.float64)
    for p in NORMS:
        together = Ball(p, 0.5).project(u, center, radii)
        alone = torch.cat(
            [
                Ball(p, float(r)).project(u[i : i + 1], center[i : i + 1])
                for i, r in enumerate(radii)
            ]
        )
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-15)


@pytest.mark.parametrize("p", NORMS)
def test_a_set_of_radius_zero_contains_the_center_only(p: float) -> None:
    center = uniform(1, 4, 3)
    space = Ball(p, 0.0)
    assert torch.equal(space.project(normal(2, 4, 3), center), center)
    assert torch.equal(space.sample(center, keys(4)), center)
    assert not space.contains(center + 1e-9, center).any()


@pytest.mark.parametrize("p", NORMS)
def test_samples_are_inside_and_uniform_in_the_ball(p: float) -> None:
    """If the box is inactive, (size / radius)^d is uniform with mean 1/2.

    The bound is five standard deviations, 5 / sqrt(12 n).
    """
    n = 20_000
    d = 5
    radius = 0.1
    center = torch.full((n, d), 0.5, dtype=torch.float64)
    space = Ball(p, radius)
    x = space.sample(center, keys(n))
    assert space.contains(x, center).all()
    level = (space.size(x - center) / radius) ** d
    assert (level.mean() - 0.5).abs() < 5 / math.sqrt(12 * n)
    # The standard deviation of a coordinate is below the radius.
    assert (x - center).mean(0).abs().amax() < 5 * radius / math.sqrt(n)
    on_the_edge = space.sample(torch.zeros_like(center), keys(n))
    assert space.contains(on_the_edge, torch.zeros_like(center)).all()


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_ascent_has_unit_length_and_gains_the_dual_norm(p: float, scale: float) -> None:
    dual = {1: math.inf, 2: 2, math.inf: 1}[p]
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-5)):
        grad = (normal(3, 8, 7) * scale).to(dtype)
        step = Ball(p, 0.1).ascent(grad, torch.full_like(grad, 0.5))
        ones = torch.ones(8, dtype=dtype)
        torch.testing.assert_close(Ball(p, 0.1).size(step), ones, rtol=0, atol=tolerance)
        gained = (grad.double() * step.double()).sum(1) / torch.linalg.vector_norm(
            grad.double(), dual, dim=1
        )
        torch.testing.assert_close(gained, ones.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("p", NORMS)
def test_a_zero_gradient_gives_a_zero_step(p: float) -> None:
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert torch.equal(Ball(p, 0.1).ascent(zero, zero), zero)


def test_sparse_ascent_moves_the_strongest_coordinates_that_can_move_in_equal_parts() -> None:
    grad = torch.tensor([[5.0, -4.0, 3.0, 2.0, -1.0, 0.5]], dtype=torch.float64)
    # The two strongest coordinates are at the edge of the box.
    x = torch.tensor([[1.0, 0.0, 0.5, 0.5, 0.5, 0.5]], dtype=torch.float64)
    step = Ball(1, 1.0).ascent(grad, x, torch.tensor([0.5], dtype=torch.float64))
    third = 1 / 3
    want = torch.tensor([[0.0, 0.0, third, third, -third, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(step, want, rtol=0, atol=1e-16)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("box", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (-2.1, 2.6)])
def test_a_set_contains_projected_float32_images(p: float, box: tuple[float, float]) -> None:
    width = box[1] - box[0]
    center = (box[0] + width * uniform(1, 20, 3, 32, 32)).clamp(*box).float()
    for share in (8 / 255, 0.5):
        radius = share * width * {1: 40, 2: 4, math.inf: 1}[p]
        space = Ball(p, radius, box)
        x = space.project(center + width * normal(2, 20, 3, 32, 32).float(), center)
        assert ((x >= box[0]) & (x <= box[1])).all()
        assert space.contains(x, center).all()
        # The slack is for rounding only: a set smaller by half a percent does not contain it.
        assert not replace(space, radius=radius * 0.995).contains(x, center).any()


def test_invalid_sets_raise_errors() -> None:
    with pytest.raises(ValueError, match=r"p=1, p=2 and p=inf, got p=3"):
        Ball(3, 0.1)
    with pytest.raises(ValueError, match="finite number >= 0, got -1"):
        Linf(-1)
    with pytest.raises(ValueError, match=r"low < high, got \(1.0, 0.0\)"):
        L2(1, box=(1.0, 0.0))


def test_the_text_of_a_set() -> None:
    assert [str(Linf(8 / 255)), str(L2(0.5)), str(L1(12))] == [
        "Linf radius 8/255",
        "L2 radius 0.5",
        "L1 radius 12",
    ]


@pytest.mark.parametrize(
    ("radius", "shown"),
    [(0.2, "0.2"), (8 / 255, "8/255"), (0.031, "0.031"), (1.0, "1"), (0.0, "0")],
)
def test_a_radius_is_shown_as_a_short_decimal_or_a_fraction_of_255(
    radius: float, shown: str
) -> None:
    assert str(Linf(radius)) == f"Linf radius {shown}"
