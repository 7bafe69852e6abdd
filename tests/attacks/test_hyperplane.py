"""Shortest steps to a hyperplane against general-purpose solvers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from tests.attacks.boundaries import numbers
from torch import Tensor
from torch.testing import assert_close

from saddlepoint.attacks.hyperplane import distance, step_to_plane
from saddlepoint.attacks.spaces import Ball

NORMS = (1, 2, math.inf)
D = 6


def problem(seed: int, fraction: float) -> tuple[Tensor, Tensor, Tensor]:
    """A point of the unit box, a normal with a zero entry, and a fraction of the largest rise."""
    x = numbers(seed, 1, D)
    normal = 2 * numbers(seed + 1, 1, D) - 1
    normal = normal * torch.tensor([1, 1, 1, 1, 1, 0.0], dtype=torch.float64)
    most = (normal.clamp(min=0) * (1 - x) - normal.clamp(max=0) * x).sum(1)
    least = (normal.clamp(max=0) * (1 - x) - normal.clamp(min=0) * x).sum(1)
    return x, normal, fraction * (most if fraction > 0 else -least)


def shortest(x: np.ndarray, w: np.ndarray, rise: float, p: float) -> float:
    """min ||d||_p with <w, d> = rise and x + d in [0, 1], by a solver of scipy."""
    if p == 2:
        start = w * rise / (w @ w)
        solved = minimize(
            lambda d: d @ d,
            np.clip(start, -x, 1 - x),
            jac=lambda d: 2 * d,
            bounds=list(zip(-x, 1 - x, strict=True)),
            constraints={"type": "eq", "fun": lambda d: w @ d - rise, "jac": lambda d: w},
            method="SLSQP",
            options={"ftol": 1e-16, "maxiter": 1000},
        )
        return float(np.sqrt(solved.fun))
    # Variables d and t with -t <= d <= t; t is one number for p = inf, one per coordinate for p =
    # 1.
    bounds_of = np.eye(D) if p == 1 else np.ones((D, 1))
    k = bounds_of.shape[1]
    solved = linprog(
        np.concatenate([np.zeros(D), np.ones(k)]),
        A_ub=np.block([[np.eye(D), -bounds_of], [-np.eye(D), -bounds_of]]),
        b_ub=np.zeros(2 * D),
        A_eq=np.concatenate([w, np.zeros(k)])[None],
        b_eq=[rise],
        bounds=[*zip(-x, 1 - x, strict=True), *[(0, None)] * k],
    )
    return float(solved.fun)


@pytest.mark.parametrize("p", NORMS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), fraction=st.floats(-0.98, 0.98))
def test_the_step_is_the_shortest_one_to_the_plane_inside_the_box(
    p: float, seed: int, fraction: float
) -> None:
    x, normal, rise = problem(seed, fraction)
    space = Ball(p, 1.0)
    d = step_to_plane(x, normal, rise, space)
    assert_close((normal * d).sum(1), rise, rtol=0, atol=1e-12)
    assert ((x + d >= -1e-12) & (x + d <= 1 + 1e-12)).all()
    # SLSQP stops at about the square root of its tolerance; the linear programs are exact to 1e-9.
    assert_close(
        space.size(d).item(),
        shortest(x[0].numpy(), normal[0].numpy(), rise.item(), p),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("p", NORMS)
def test_a_step_to_a_plane_outside_the_box_ends_in_a_corner(p: float) -> None:
    x, normal, rise = problem(7, 1.5)
    reached = x + step_to_plane(x, normal, rise, Ball(p, 1.0))
    corner = torch.where(normal > 0, 1.0, torch.where(normal < 0, 0.0, x))
    assert_close(reached, corner, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", NORMS)
def test_without_a_box_the_step_is_as_long_as_the_distance(p: float) -> None:
    x = numbers(3, 8, D)
    normal = 2 * numbers(4, 8, D) - 1
    value = 2 * numbers(5, 8) - 1
    space = Ball(p, 1.0, box=(-100, 100))
    assert_close(
        space.size(step_to_plane(x, normal, -value, space)),
        distance(value, normal, space),
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("p", NORMS)
def test_the_step_of_a_row_does_not_depend_on_its_batch(p: float) -> None:
    parts = [problem(seed, 0.1 * seed) for seed in range(1, 10)]
    together = step_to_plane(
        *(torch.cat(column) for column in zip(*parts, strict=True)), Ball(p, 1.0)
    )
    assert torch.equal(together, torch.cat([step_to_plane(*part, Ball(p, 1.0)) for part in parts]))


@pytest.mark.parametrize("p", NORMS)
def test_a_zero_normal_gives_a_zero_step(p: float) -> None:
    x = numbers(3, 2, D)
    assert not step_to_plane(
        x, torch.zeros_like(x), torch.ones(2, dtype=x.dtype), Ball(p, 1.0)
    ).any()
