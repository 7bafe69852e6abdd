"""Missing parts of gradients are found, replaced where possible, and otherwise reported."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import saddlepoint as sp
from saddlepoint.audits import AuditRequest
from saddlepoint.audits.probes.gradient_check import Check
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.verdict import Level, SymptomName, Verdict
from saddlepoint.evaluation import Threat
from saddlepoint.selftests.problem import (
    four_classes,
    left,
    live,
    relabeled,
    toward,
    two_classes,
    worst_margins,
)

PROBLEM = four_classes(40, 0.005, 32)
GENERATOR = torch.Generator().manual_seed(3)
TEACHER = torch.randn(PROBLEM.weight.shape, generator=GENERATOR) / 8


class Code(nn.Module):
    """A function as a module without submodules."""

    def __init__(self, code):
        super().__init__()
        self.code = code
        self.eval()

    def forward(self, x):
        return self.code(x)


def linear(x):
    return functional.linear(x.flatten(1), PROBLEM.weight.to(x), PROBLEM.bias.to(x))


def teacher(x):
    return (x.flatten(1) - 0.5) @ TEACHER.T.to(x)


def facts_of(target, problem=PROBLEM):
    threat = Threat(sp.Linf(problem.radius))
    return probe_stage(AuditRequest(target, problem.x, problem.y, threat, "quick"))


def two_streams(x):
    with torch.no_grad():
        other = teacher(x)
    return linear(x) + other


def scaled_streams(x):
    """The statistics of the batch scale the logits, so that rows are coupled."""
    return two_streams(x) / (1 + x.flatten(1).std(0, correction=0).mean())


class NamedAndUnnamed(sp.Defense):
    """One named site, and a stream without gradient."""

    def trace(self, x, ctx):
        rounded = ctx.through("round", lambda v: (255 * v).round() / 255, x)
        return sp.Trace((sp.View("final", linear(rounded) + teacher(x.detach())),))


@pytest.mark.parametrize("code", [two_streams, scaled_streams])
def test_a_stream_under_no_grad_is_found_also_where_rows_are_coupled(code):
    found = facts_of(Code(code))
    (site,) = found.facts.bypassed
    assert re.fullmatch(r"test_operations\.py:\d+ no_grad", site)
    assert found.facts.replaced.check is Check.RIGHT


def test_a_stream_without_gradient_is_found_beside_a_named_site():
    found = facts_of(NamedAndUnnamed())
    assert found.facts.bypassed[0] == "round"
    assert found.facts.bypassed[1].endswith(" detach")
    assert found.facts.replaced.check is Check.RIGHT


def test_an_exact_gradient_of_coupled_rows_is_no_finding():
    def code(x):
        normalized = functional.batch_norm(x, None, None, training=True)
        return normalized.flatten(1) @ PROBLEM.weight.T.to(x)

    found = facts_of(Code(code))
    assert not found.facts.bypassed
    assert [symptom.name for symptom in found.findings] == [SymptomName.COUPLED_ROWS]


def test_the_finding_names_line_code_and_surrogate():
    found = facts_of(Code(lambda x: linear((x > 0.5).to(x.dtype))))
    (symptom,) = found.findings
    assert symptom.name is SymptomName.NO_GRADIENT
    assert symptom.level is Level.WARNING
    assert re.search(r"test_operations\.py:\d+ gt \(`.*x > 0\.5.*`\) by sigmoid", symptom.message)


def by_numpy(x):
    """A stream of another shape than the images is computed outside torch."""
    pixels = x.detach().numpy().reshape(len(x), -1)
    return linear(x) + torch.from_numpy((pixels - 0.5) @ TEACHER.T.numpy())


def test_a_part_without_a_surrogate_is_serious_and_its_line_is_named():
    found = facts_of(Code(by_numpy))
    serious = [s for s in found.findings if s.level is Level.SERIOUS]
    assert [symptom.name for symptom in serious] == [SymptomName.WRONG_GRADIENTS]
    assert re.search(r"cut at test_operations\.py:\d+: `return linear\(x\)", serious[0].message)


def test_a_plain_net_is_not_recorded(monkeypatch):
    def fail(*_):
        raise AssertionError("operations were recorded")

    monkeypatch.setattr("saddlepoint.audits.probes.operations.record", fail)
    assert not facts_of(Code(linear)).facts.bypassed


def exact_truth(problem, weight, bias):
    low, high = problem.box()
    return float((worst_margins(weight, bias, low, high, problem.y) < 0).double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("code", [two_streams, scaled_streams])
def test_robust_accuracy_with_a_stream_under_no_grad(code):
    problem = relabeled(PROBLEM, two_streams)
    result = sp.audit(Code(code), problem.x, problem.y, threat=sp.Linf(problem.radius))
    bias = problem.bias - 0.5 * TEACHER.sum(1)
    truth = exact_truth(problem, problem.weight + TEACHER, bias)
    assert result.robust_accuracy == pytest.approx(truth, abs=0.02)


def detached_statistics(x):
    v = x.flatten(1)
    scale = v.std(0, correction=0) + 0.1
    return live(((v - v.mean(0).detach()) / scale.detach()) @ SLOPE.to(x))


SMALL = two_classes(60, 0.01)
SLOPE = SMALL.weight[0] - SMALL.weight[1]


def by_hand(problem, steps=200):
    """The accuracy after ascent of a smooth count of errors with exact gradients."""
    low, high = problem.box()
    sign = toward(problem.y)
    x = problem.x.flatten(1).double()
    lowest = 1.0
    for step in range(steps):
        x = x.detach().requires_grad_()
        v = (x - x.mean(0)) / (x.std(0, correction=0) + 0.1)
        margins = sign * (v @ SLOPE.double())
        lowest = min(lowest, float((margins > 0).double().mean()))
        loss = (-10 * margins).sigmoid().sum() if step > 50 else -margins.sum()
        (grad,) = torch.autograd.grad(loss, x)
        x = (x + problem.radius / 15 * grad.sign()).clamp(low, high)
    return lowest


def exact_statistics(x):
    v = x.flatten(1)
    return live(((v - v.mean(0)) / (v.std(0, correction=0) + 0.1)) @ SLOPE.to(x))


@pytest.mark.slow
@pytest.mark.parametrize("code", [exact_statistics, detached_statistics])
def test_the_errors_of_a_batch_are_maximized_not_the_sum_of_its_losses(code):
    """At this radius the sum of losses rises most where few rows are misclassified by far."""
    problem = relabeled(replace(SMALL, radius=0.02), detached_statistics)
    result = sp.audit(
        Code(code),
        problem.x,
        problem.y,
        threat=sp.Linf(problem.radius),
        batch_size=len(problem.x),
    )
    assert result.robust_accuracy <= by_hand(problem) + 0.02


@pytest.mark.slow
def test_robust_accuracy_with_detached_statistics_of_the_batch():
    problem = relabeled(SMALL, detached_statistics)
    result = sp.audit(
        Code(detached_statistics),
        problem.x,
        problem.y,
        threat=sp.Linf(problem.radius),
        batch_size=len(problem.x),
    )
    too_high = result.robust_accuracy > by_hand(problem) + 0.02
    assert not (too_high and result.verdict is Verdict.CREDIBLE)
    assert any("detach" in symptom.message for symptom in result.symptoms)


@pytest.mark.slow
def test_robust_accuracy_beside_a_named_site():
    defense = NamedAndUnnamed()
    problem = relabeled(PROBLEM, lambda x: defense.trace(x, sp.Context.seeded(0, len(x))).last)
    result = sp.audit(defense, problem.x, problem.y, threat=sp.Linf(problem.radius))
    # Without rounding, which moves a pixel by at most 1/510.
    smooth = replace(problem, weight=problem.weight + TEACHER)
    smooth = replace(smooth, bias=problem.bias - 0.5 * TEACHER.sum(1))
    assert result.robust_accuracy == pytest.approx(left(smooth, *problem.box()), abs=0.03)
