"""Worst points are shrunk toward their clean images, where one error counts."""

from __future__ import annotations

import math

import pytest
import torch
from tests.audits.linear_defenses import NET, Coupled, NoisyGradient, X, Y, plan_for

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.segments import ShrinkPoints
from saddlepoint.audits.planning.audit_cost import SHRINK_STEPS
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.passes import count_passes
from saddlepoint.reports.context import ReportContext
from saddlepoint.reports.export import example_columns
from saddlepoint.reports.sections.radius import radius

EPS = 0.2
ROWS = torch.arange(len(X))
APGD_ONLY = [Direct("apgd", APGD(10))]


def largest_step(x, y):
    """The worst point of the linear net: every pixel moves by the radius against the label."""
    sign = torch.where(y == 0, -1.0, 1.0)[:, None]
    return x + EPS * sign * NET.w.detach().sign()


def exact_sizes(x):
    """|w . (x - 1/2)| / ||w||_1: on that segment the prediction changes where the score is 0."""
    return ((x - 0.5) @ NET.w.detach()).abs() / NET.w.detach().abs().sum()


def shrunk(rows):
    job = Job(Plain(NET), X, Y, Threat(sp.Linf(EPS)), seed=0, batch_size=32)
    return ShrinkPoints(rows, largest_step(X, Y)[rows]).compute(job)["size"]


def broken_rows():
    rows = ROWS[exact_sizes(X) < EPS]
    assert len(rows) > 20
    return rows


def test_the_size_on_a_linear_net_is_within_one_bisection_interval_of_the_exact_one():
    rows = broken_rows()
    above = shrunk(rows) - exact_sizes(X)[rows]
    # The point is misclassified, so its size is never below the exact one, up to rounding.
    assert above.min() >= -1e-12
    assert above.max() <= EPS / 2**SHRINK_STEPS + 1e-12


def test_each_image_costs_one_forward_pass_per_step_and_no_gradient():
    rows = broken_rows()
    with count_passes() as counter:
        shrunk(rows)
    assert counter.total.forward == SHRINK_STEPS * len(rows)
    assert counter.total.backward == 0


class Stripes(torch.nn.Module):
    """One pixel; the class changes every pi / 200."""

    def forward(self, x):
        score = (200 * x).cos()
        return torch.cat([score, -score], 1)


def test_the_shrunk_point_is_misclassified_where_the_segment_crosses_several_boundaries():
    points = torch.linspace(0.0, EPS, 200, dtype=torch.float64)[:, None]
    points = points[Stripes()(points).argmax(1) == 1]
    x = torch.zeros_like(points)
    y = torch.zeros(len(x), dtype=torch.long)
    job = Job(Plain(Stripes()), x, y, Threat(sp.Linf(EPS)), seed=0, batch_size=32)
    size = ShrinkPoints(torch.arange(len(x)), points).compute(job)["size"]
    assert (Stripes()(size[:, None]).argmax(1) == 1).all()
    assert (size < points[:, 0]).any()


def audit(target, **options):
    return sp.audit(
        target, X, Y, threat=sp.Linf(EPS), adversaries=APGD_ONLY, allow_unusual=True, **options
    )


def test_an_audit_with_one_attack_of_full_radius_has_a_radius_curve(tmp_path):
    found = audit(NET)
    known = found.examples.smallest.isfinite()
    assert torch.equal(known, found.correct < 0.5)
    assert known.any()
    assert (found.examples.size[known] > 0.999 * EPS).all()
    assert (found.examples.smallest[known] < 0.95 * EPS).any()
    section = radius(ReportContext.load(found, tmp_path))
    assert section is not None
    loaded = type(found).load(found.save(tmp_path))
    assert torch.equal(loaded.examples.smallest, found.examples.smallest)
    assert example_columns(found)["smallest"] == found.examples.smallest.tolist()


@pytest.mark.parametrize("target", [NoisyGradient(0.0), Coupled()], ids=["random", "coupled"])
def test_randomized_and_coupled_targets_have_no_such_measurement(target, tmp_path):
    found = audit(target)
    assert found.examples.smallest.shape == (0,)
    assert ReportContext.load(found, tmp_path).smallest_sizes is None
    assert all(math.isnan(size) for size in example_columns(found)["smallest"])


@pytest.mark.parametrize(("target", "shrinks"), [(NET, True), (Coupled(), False)])
def test_the_stated_cost_of_an_audit_includes_the_bisection(monkeypatch, target, shrinks):
    plan = plan_for(target, APGD_ONLY, sp.Linf(EPS))
    before = plan.cost.diagnostics
    monkeypatch.setattr("saddlepoint.audits.planning.audit_cost.SHRINK_STEPS", SHRINK_STEPS + 10)
    assert plan.cost.diagnostics == before + (10 if shrinks else 0)
