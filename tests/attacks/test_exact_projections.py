"""Projections onto ball and box equal those that a bisection finds."""

from __future__ import annotations

import pytest
import torch

from saddlepoint.attacks import projections
from saddlepoint.attacks.projections import project_l1, project_l2
from saddlepoint.attacks.spaces import L1

ROWS = 200
D = 40


def bisected(u, low, high, radius, p):
    """The projection by 200 halvings of the interval of its only unknown, in float64."""

    def at(s):
        """Scaled by s for p = 2; shrunk by s for p = 1; then clipped."""
        moved = u * s if p == 2 else u.sign() * (u.abs() - s).clamp(min=0)
        return torch.clamp(moved, low, high)

    feasible = torch.zeros(len(u), 1).double() if p == 2 else u.abs().amax(1, keepdim=True)
    other = torch.ones(len(u), 1).double() if p == 2 else torch.zeros(len(u), 1).double()
    whole = at(other).norm(p, dim=1, keepdim=True) <= radius[:, None]
    for _ in range(200):
        middle = (feasible + other) / 2
        inside = at(middle).norm(p, dim=1, keepdim=True) <= radius[:, None]
        feasible = torch.where(inside, middle, feasible)
        other = torch.where(inside, other, middle)
    return torch.where(whole, at(torch.full_like(other, p - 1)), at(feasible))


def problem(kind, seed=0):
    """Perturbations of images: inside and outside of balls, with and without clipped pixels."""
    generator = torch.Generator().manual_seed(seed)
    center = torch.rand(ROWS, D, generator=generator).double()
    if kind != "gray":
        center = center.round()
    u = torch.randn(ROWS, D, generator=generator).double()
    if kind == "scales":  # coordinates become clipped one after the other
        u = u * torch.logspace(-3, 3, D).double()
    if kind == "sparse":
        u = u * (torch.rand(ROWS, D, generator=generator) < 0.2)
    return u, -center, 1 - center, torch.linspace(0.01, 6, ROWS).double()


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("kind", ["gray", "black and white", "scales", "sparse"])
@pytest.mark.parametrize("reads", [True, False])
def test_projections_are_those_of_a_bisection(kind, p, reads, monkeypatch):
    """Up to the rounding of 40 numbers; 16 units in the last place of the largest are enough."""
    monkeypatch.setattr(projections, "reading_is_free", lambda device: reads)
    given = problem(kind)
    found = (project_l1 if p == 1 else project_l2)(*given)
    assert (found - bisected(*given, p)).abs().amax() < 16 * 2.3e-16 * max(given[0].abs().amax(), 1)


@pytest.mark.parametrize("p", [1, 2])
def test_projections_in_single_precision_are_inside(p):
    u, low, high, radius = (v.float() for v in problem("black and white"))
    found = (project_l1 if p == 1 else project_l2)(u, low, high, radius)
    assert (found.double().norm(p, dim=1) <= radius.double() * (1 + 1e-6)).all()
    assert ((found >= low) & (found <= high)).all()


@pytest.mark.parametrize("p", [1, 2])
def test_given_perturbations_are_not_changed(p):
    given = problem("gray")
    before = [v.clone() for v in given]
    (project_l1 if p == 1 else project_l2)(*given)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


@pytest.mark.parametrize("p", [1, 2])
def test_projections_of_recorded_perturbations_have_the_same_values(p):
    u, low, high, radius = problem("black and white")
    project = project_l1 if p == 1 else project_l2
    recorded = project(u.clone().requires_grad_(), low, high, radius)
    assert torch.allclose(recorded.detach(), project(u, low, high, radius), rtol=0, atol=1e-15)
    recorded.sum().backward()


def test_sparse_steps_move_only_where_the_box_allows_it():
    """Against comparisons of every coordinate."""
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(60, 50, generator=generator)
    x = torch.where(x < 0.3, 0.0, torch.where(x > 0.7, 1.0, x))
    grad = torch.randn(60, 50, generator=generator)
    grad[:, ::7] = 0
    blocked = ((grad > 0) & (x >= 1)) | ((grad < 0) & (x <= 0)) | (grad == 0)
    for density in (None, torch.rand(60, generator=generator), torch.full((60,), 0.2)):
        found = L1(1.0).ascent(grad, x, density)
        share = torch.zeros(60) if density is None else density
        for row in range(60):
            free = (~blocked[row]).nonzero()[:, 0]
            count = max(int(share[row] * 50), 1)
            best = free[grad[row, free].abs().argsort(descending=True)[:count]]
            expected = torch.zeros(50)
            expected[best] = grad[row, best].sign() / len(best)
            assert torch.equal(found[row], expected)
