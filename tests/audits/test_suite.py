"""From what a target is to who is sent against it: every choice has a reason and a price, and follows from traits alone."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.planning.cost import price
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import plan
from saddlepoint.audits.planning.suite import BUDGETS, compose
from saddlepoint.describe import describe
from saddlepoint.evaluation.escalation import Escalate
from saddlepoint.gradients import FixedRandomness

N = 16
LINF = sp.Linf(0.05)
X = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(16, 5, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def forward(self, x):
        return x.flatten(1) @ WEIGHT


NET = Net().eval()
Y = NET(X).argmax(1)


class Purifier(sp.Defense):
    """Moves the image by a step before the net sees it."""

    static = NET

    def __init__(self, step, **declared):
        self.step = step
        for name, value in declared.items():
            setattr(self, name, value)

    def trace(self, x, ctx):
        return sp.Trace(
            (
                sp.View("before", NET(x)),
                sp.View("after", NET(ctx.through("purify", lambda v: self.step(v, ctx), x))),
            )
        )


class Learner(sp.Defense):
    """Subtracts a share of the mean of the batch that it was asked about last."""

    memory = "batch"
    static = NET

    def __init__(self, mean=0.0):
        self.mean = mean

    def adapt(self, x, ctx):
        return Learner(x.mean(0, keepdim=True) / 4)

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", NET(x - self.mean)),))


def flat(v, ctx):
    return (8 * v).round() / 8


def smooth(v, ctx):
    return v + 0.1 * torch.sin(v)


def noise(v, ctx):
    return v + 0.1 * ctx.randn_like(v)


def planned(target, budget="standard", **kwargs):
    return plan(target, X, Y, threat=LINF, budget=budget, **kwargs)


def reasons(target, budget="standard"):
    return {choice.name: choice.reason for choice in planned(target, budget).choices}


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_choice_says_why_and_what_it_may_cost(budget):
    for target in (NET, Purifier(flat), Purifier(noise, random=True), Learner()):
        choices = planned(target, budget).choices
        assert len({choice.name for choice in choices}) == len(choices)
        assert all(choice.reason and choice.passes for choice in choices)
        assert describe(choices) == describe(planned(target, budget).choices)


def test_a_site_that_kills_gradients_is_led_around_and_said_to_be():
    assert "gradients vanish through `purify`: BPDA(identity)" in reasons(Purifier(flat))["apgd-ce"]
    sent = {choice.name: choice.adversary for choice in planned(Purifier(flat)).choices}
    assert sent["apgd-ce"].rules == {"purify": sp.BPDA()}
    assert "BPDA" not in reasons(Purifier(smooth))["apgd-ce"]


def test_sites_that_kill_nothing_are_led_around_beside_the_exact_gradient():
    sent = {choice.name: choice.adversary for choice in planned(Purifier(smooth)).choices}
    assert sent["apgd-ce"].rules == {}
    assert sent["apgd-bpda"].rules == {"purify": sp.BPDA()}
    assert "apgd-bpda" not in reasons(NET)


def test_layers_of_an_opaque_net_are_led_around_by_name():
    class Layer(nn.Module):
        def forward(self, x):
            return (8 * x).round() / 8

    net = nn.Sequential(Layer(), nn.Flatten(), nn.Linear(16, 5)).eval()
    assert "`0`" in reasons(net)["apgd-ce"]


def test_several_views_are_attacked_at_once_and_one_is_not():
    assert "apgd-views" in reasons(Purifier(smooth))
    assert "apgd-views" not in reasons(NET)


def test_randomness_is_averaged_by_as_many_draws_as_its_noise_asks_for_and_fixed_besides():
    small, large = (
        Purifier(lambda v, ctx, s=s: torch.sin(v + s * ctx.randn_like(v)), random=True)
        for s in (0.05, 3.0)
    )
    plans = [planned(defense) for defense in (small, large)]
    draws = [plan.choices[0].adversary.estimator.draws for plan in plans]
    assert draws[0] < draws[1] <= BUDGETS["standard"].draws
    assert isinstance(
        {c.name: c.adversary for c in plans[0].choices}["apgd-fixed"].estimator, FixedRandomness
    )
    assert "apgd-fixed" not in reasons(NET)


def test_the_static_net_is_attacked_by_several_losses_and_without_gradients():
    names = set(reasons(Purifier(smooth)))
    moved = {f"transfer {name}" for name in ("apgd-ce", "apgd-margin", "apgd-t", "square", "rays")}
    assert moved | {"square", "rays"} <= names
    assert not any(name.startswith("transfer") for name in reasons(NET))


def test_what_a_defense_learns_is_anticipated_and_differentiated_where_it_can_be():
    found = planned(Learner())
    assert {"fixed-point", "gmsa-avg", "gmsa-min", "apgd-adapt"} <= {
        choice.name for choice in found.choices
    }
    assert found.findings == ()

    class Numb(Learner):
        def adapt(self, x, ctx):
            return Numb(x.detach().mean(0, keepdim=True) / 4)

    assert "apgd-adapt" not in reasons(Numb())


def test_an_audit_that_anticipates_nothing_says_so():
    found = planned(Learner(), adversaries=[sp.Direct("pgd", sp.PGD(2))])
    assert [(f.name, f.level) for f in found.findings] == [("adapts at test time", "serious")]
    assert [choice.reason for choice in found.choices] == ["asked for"]


def test_anticipation_breaks_what_the_model_as_it_stands_does_not_show():
    # The mean of the batch is taken off every image, so an attack that moves all images alike moves nothing: only one that knows of
    # the adaptation sees that.
    result = sp.audit(Learner(), X, Y, threat=LINF, budget="standard", batch_size=N)
    alone = {row.name: row.robust_accuracy for row in result.rows}
    assert (
        min(alone["gmsa-avg"], alone["gmsa-min"], alone["fixed-point"], alone["apgd-adapt"])
        <= alone["transfer apgd-ce"]
    )
    assert result.robust_accuracy == min(alone.values())


@pytest.mark.parametrize(
    "target", [NET, Purifier(noise, random=True), Learner()], ids=["net", "random", "learner"]
)
def test_no_adversary_costs_more_than_its_price(target):
    found = plan(target, X, Y, threat=sp.Threat(LINF, draws=2), budget="quick")
    for choice in found.choices:
        episode = found.job.play(choice.adversary, torch.arange(N))
        looked = 1 if found.job.defense.unit == "example" and not found.job.defense.random else 0
        assert int((episode.forward + episode.backward).amax()) <= choice.passes + looked, (
            choice.name
        )


def test_rows_that_were_nearly_broken_are_pursued_where_they_can_be_told_apart_and_gradients_be_trusted():
    sent = {choice.name: choice.adversary for choice in planned(NET).choices}
    assert {name for name, adversary in sent.items() if isinstance(adversary, Escalate)} == {
        "apgd-t",
        "square",
    }
    for target, budget in (
        (NET, "quick"),
        (Purifier(flat), "standard"),
        (Purifier(noise, random=True), "standard"),
        (Learner(), "standard"),
    ):
        assert not any(
            "Escalate" in str(describe(choice.adversary))
            for choice in planned(target, budget).choices
        )


def test_nobody_is_pursued_where_queries_do_not_pay_for_it():
    sent = {
        choice.name: choice.adversary
        for choice in compose(sp.Plain(NET), sp.Threat(LINF, queries=400), "standard")
    }
    assert isinstance(sent["apgd-t"], sp.MultiTarget)
    assert isinstance(sent["square"], sp.Direct)


def test_what_queries_do_not_pay_for_is_left_out():
    threat = sp.Threat(LINF, queries=150)
    choices = compose(Learner(), threat, "standard")
    names = {choice.name for choice in choices}
    assert all(
        price(choice.adversary).forward <= 150
        for choice in choices
        if choice.adversary.needs == "gradient"
    )
    assert "gmsa-min" not in names
    assert "square" in names  # it stops where queries end
