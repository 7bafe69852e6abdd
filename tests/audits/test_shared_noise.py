"""Robust accuracy under noise that all images of a batch share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest
from saddlepoint.audits.cells import Job
from saddlepoint.audits.planning.audit_cost import audit_cost
from saddlepoint.audits.planning.plan import make_plan
from saddlepoint.audits.probes.stage import probe_stage
from saddlepoint.audits.shared_noise import MOST_DRAWS, PARTS, standard_error, until_precise
from saddlepoint.evaluation import Threat

N = 40
X = torch.rand(N, 1, 2, 2, generator=torch.Generator().manual_seed(0))
DRAWS = 20
WRONG = 0.05  # probability that a call misclassifies all images


class WrongTogether(nn.Module):
    """Classifies all images of a call correctly, or all of them wrongly."""

    def forward(self, x):
        right = 1.0 - 2.0 * (torch.rand(()) < WRONG).to(x)
        bright = x.flatten(1)[:, :1] - x.flatten(1)[:, 1:2]
        return right * torch.cat([bright, -bright], 1)


LABELS = (X.flatten(1)[:, 0] < X.flatten(1)[:, 1]).long()


class WrongTogetherBySeed(sp.Defense):
    """The same as a defense, which is faster because no global generators are seeded."""

    random = True

    def trace(self, x, ctx):
        generator = torch.Generator().manual_seed(ctx.shared_seed() % 2**63)
        right = 1.0 - 2.0 * (torch.rand((), generator=generator) < WRONG).to(x)
        bright = x.flatten(1)[:, :1] - x.flatten(1)[:, 1:2]
        return sp.Trace((sp.View("final", right * torch.cat([bright, -bright], 1)),))


def job_for(*, shared):
    defense = WrongTogetherBySeed()
    threat = Threat(sp.Linf(1e-6), draws=DRAWS)
    return Job(defense, X, LABELS, threat, seed=3, batch_size=N, shared_noise=shared)


def test_draws_follow_the_variance_between_draws():
    """The standard deviation of one draw is sqrt(0.05 * 0.95) = 0.22: 475 draws give one point."""
    rows = torch.arange(N)
    accuracy = float(job_for(shared=True).recheck(X, rows).correct.mean())
    assert abs(accuracy - (1 - WRONG)) <= 3 * 0.01
    few = [
        float(Job(**{**vars(job_for(shared=False)), "seed": seed}).recheck(X, rows).correct.mean())
        for seed in range(4)
    ]
    # Without it, 20 draws have a standard error of 5 points.
    assert max(abs(each - (1 - WRONG)) for each in few) > 0.03


def episode(correct, chosen):
    one = job_for(shared=False).recheck(X, torch.arange(N))
    return one.__class__(
        **{
            **vars(one),
            "correct": torch.full((1, N), correct, dtype=torch.float64),
            "chosen": torch.full((1, N), chosen, dtype=torch.float64),
        }
    )


def test_constant_accuracies_need_no_further_draws():
    calls = []
    one = episode(0.5, 0.5)

    def evaluate(k):
        calls.append(k)
        return one

    found = until_precise(evaluate, 10, 0.01)
    assert calls == list(range(PARTS))
    assert float(found.correct.mean()) == 0.5


def test_the_most_draws_bound_the_number_of_evaluations():
    calls = []
    one = episode(0.0, 1.0)

    def evaluate(k):
        calls.append(k)
        return one

    until_precise(evaluate, 10, 0.0)
    assert len(calls) == math.ceil(MOST_DRAWS / 20)


def test_the_standard_error_is_that_of_the_mean_of_all_halves():
    parts = [episode(0.2, 0.4), episode(0.6, 0.4)]
    expected = torch.tensor([0.2, 0.4, 0.6, 0.4], dtype=torch.float64).std() / 2
    assert standard_error(parts) == pytest.approx(float(expected), abs=1e-12)


def test_noise_per_call_is_found_and_the_stated_cost_contains_the_draws():
    request = AuditRequest(
        WrongTogether().eval(), X, LABELS, Threat(sp.Linf(1e-3)), allow_unusual=True
    )
    plan = make_plan(request, probe_stage(request))
    assert plan.job.shared_noise
    cost = audit_cost(plan.job, plan.choices, plan.remedy_passes)
    assert cost is not None
    assert cost.evaluations >= MOST_DRAWS
