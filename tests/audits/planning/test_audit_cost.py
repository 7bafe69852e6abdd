"""The cost that is stated before an audit is an upper bound on its passes."""

from __future__ import annotations

import hashlib
import time

import numpy
import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.audits.pipeline import InProcess, collect
from saddlepoint.selftests.problem import Affine, two_classes

N = 8
PROBLEM = two_classes(N)


class Counted(nn.Module):
    """A linear net that counts forward passes, and passes with a gradient twice."""

    passes = 0

    def __init__(self, before):
        super().__init__()
        self.before = before
        self.net = PROBLEM.net()

    def forward(self, x):
        Counted.passes += len(x) * (1 + (torch.is_grad_enabled() and x.requires_grad))
        return self.net(self.before(x))


def clock(x):
    return x + 0.1 * (time.perf_counter_ns() % 5)


def new_generator(x):
    return x + torch.from_numpy(0.4 * numpy.random.default_rng().standard_normal(x.shape)).to(x)


def pixel_hash(x):
    digests = [hashlib.sha256(row.detach().numpy().tobytes()).digest()[0] for row in x]
    return x + 0.1 * torch.tensor([digest % 3 for digest in digests]).view(-1, 1, 1, 1)


BEFORE = {
    "plain": lambda x: x,
    "clock": clock,
    "new generator": new_generator,
    "pixel hash": pixel_hash,
    "quantizer": lambda x: (8 * x).round() / 8,
}


SLOW = pytest.param("clock", "standard", marks=pytest.mark.slow)
RUNS = [*((name, "quick") for name in BEFORE), ("plain", "standard"), SLOW]


@pytest.mark.parametrize(("name", "budget"), RUNS)
def test_an_audit_takes_no_more_passes_than_its_cost(name, budget):
    Counted.passes = 0
    threat = sp.Threat(sp.Linf(PROBLEM.radius), draws=2)
    net = Counted(BEFORE[name]).eval()
    plan = prepare(AuditRequest(net, PROBLEM.x, PROBLEM.y, threat, budget))
    of_probes = Counted.passes / N
    cost = plan.cost
    assert cost is not None
    assert of_probes <= cost.probes
    collect(plan, InProcess())
    assert Counted.passes / N <= cost.total


def test_the_cost_names_its_parts():
    request = AuditRequest(PROBLEM.net(), PROBLEM.x, PROBLEM.y, sp.Threat(sp.Linf(0.1)), "quick")
    cost = prepare(request).cost
    assert cost is not None
    parts = (cost.probes, cost.attacks, cost.evaluations, cost.diagnostics, cost.remedies)
    assert cost.total == sum(parts)
    assert cost.remedies == 0
    for name in ("probes", "attacks", "evaluations", "diagnostics", "remedies"):
        assert name in str(cost)


def test_the_cost_is_unknown_if_that_of_an_adversary_is():
    class Unknown(sp.Direct):
        def cost(self, draws=1):
            return None

    adversary = Unknown("unknown", sp.PGD(2))
    request = AuditRequest(
        Affine(PROBLEM.weight, PROBLEM.bias),
        PROBLEM.x,
        PROBLEM.y,
        sp.Threat(sp.Linf(0.1)),
        adversaries=(adversary,),
    )
    assert prepare(request).cost is None


@pytest.mark.parametrize("queries", [None, 40])
def test_no_attack_of_an_audit_takes_more_passes_than_its_plan_says(queries):
    """The extra pass evaluates the clean image, where misclassified images are skipped."""
    threat = sp.Threat(sp.Linf(0.01), queries=queries)  # too small to break every image
    plan = prepare(AuditRequest(PROBLEM.net(), PROBLEM.x, PROBLEM.y, threat, "quick"))
    reached = []
    for choice, adversary in zip(plan.choices, plan.adversaries[1:], strict=True):
        episode = plan.job.play(adversary, plan.job.groups[0])
        used = int((episode.forward + episode.backward).max())
        assert used <= plan.most_passes(choice), choice.name
        assert queries is None or int(episode.forward.max()) <= queries, choice.name
        reached.append(used == plan.most_passes(choice))
    assert any(reached)
