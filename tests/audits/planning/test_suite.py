"""The planned adversaries follow from the traits of a target; each has a reason and a cost."""

from __future__ import annotations

import pytest
import torch
from tests.audits.linear_defenses import plan_for
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.losses import SmoothError
from saddlepoint.audits.planning.budget import BUDGETS
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.verdict import Level, SymptomName
from saddlepoint.describe import describe
from saddlepoint.evaluation import Escalate
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
    """Applies a step to the image before the net."""

    static = NET

    def __init__(self, step, **declared):
        self.step = step
        for name, value in declared.items():
            setattr(self, name, value)

    def trace(self, x, ctx):
        purified = ctx.through("purify", lambda v: self.step(v, ctx), x)
        return sp.Trace((sp.View("before", NET(x)), sp.View("after", NET(purified))))


class Adapting(sp.Defense):
    """Subtracts a fraction of the mean of the batch that it adapted to."""

    memory = "batch"
    static = NET

    def __init__(self, mean=0.0):
        self.mean = mean

    def adapt(self, x, ctx):
        return Adapting(x.mean(0, keepdim=True) / 4)

    def trace(self, x, ctx):
        return sp.Trace((sp.View("final", NET(x - self.mean)),))


class AdaptingWithoutGradient(Adapting):
    def adapt(self, x, ctx):
        return AdaptingWithoutGradient(x.detach().mean(0, keepdim=True) / 4)


def noise(scale):
    return lambda v, ctx: torch.sin(v + scale * ctx.randn_like(v))


FLAT = Purifier(lambda v, ctx: (8 * v).round() / 8)
SMOOTH = Purifier(lambda v, ctx: v + 0.1 * torch.sin(v))
RANDOM = Purifier(lambda v, ctx: v + 0.1 * ctx.randn_like(v), random=True)
LITTLE_NOISE = Purifier(noise(0.05), random=True)
MUCH_NOISE = Purifier(noise(3.0), random=True)
ADAPTING = Adapting()


@pytest.fixture(scope="module")
def planned():
    """Plans by target and budget, each made once."""
    cache = {}

    def plan(target, budget="standard"):
        key = (id(target), budget)
        if key not in cache:
            cache[key] = (target, plan_for(target, (), LINF, X, Y, budget=budget))
        return cache[key][1]

    return plan


@pytest.fixture(scope="module")
def reasons(planned):
    """The reasons of the adversaries of a standard plan, by name."""

    def by_name(target):
        return {choice.name: choice.reason for choice in planned(target).choices}

    return by_name


@pytest.fixture(scope="module")
def adversaries(planned):
    """The adversaries of a standard plan, by name."""

    def by_name(target):
        return {choice.name: choice.adversary for choice in planned(target).choices}

    return by_name


TARGETS = pytest.mark.parametrize(
    "target", [NET, FLAT, RANDOM, ADAPTING], ids=["net", "flat", "random", "adapting"]
)


@TARGETS
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_choice_has_a_name_a_reason_and_a_cost(planned, target, budget):
    choices = planned(target, budget).choices
    assert len({choice.name for choice in choices}) == len(choices)
    assert all(choice.reason and choice.passes for choice in choices)


@TARGETS
def test_a_plan_is_a_function_of_the_request(planned, target):
    again = plan_for(target, (), LINF, X, Y)
    assert describe(again.choices) == describe(planned(target).choices)


def test_a_site_that_loses_gradients_is_bypassed_and_the_reason_says_so(reasons, adversaries):
    text = "gradients vanish at `purify`: BPDA(identity)"
    assert text in reasons(FLAT)["apgd-ce"]
    assert adversaries(FLAT)["apgd-ce"].rules == {"purify": sp.BPDA()}
    assert "BPDA" not in reasons(SMOOTH)["apgd-ce"]


def test_other_sites_are_bypassed_in_one_attack_beside_exact_gradients(reasons, adversaries):
    assert adversaries(SMOOTH)["apgd-ce"].rules == {}
    assert adversaries(SMOOTH)["apgd-bpda"].rules == {"purify": sp.BPDA()}
    assert "apgd-bpda" not in reasons(NET)


class Rounding(nn.Module):
    def forward(self, x):
        return (8 * x).round() / 8


def test_layers_of_a_net_are_bypassed_by_name(reasons):
    torch.manual_seed(0)
    net = nn.Sequential(Rounding(), nn.Flatten(), nn.Linear(16, 5)).eval()
    assert "`0`" in reasons(net)["apgd-ce"]


def test_several_views_are_attacked_together(reasons):
    assert "apgd-views" in reasons(SMOOTH)
    assert "apgd-views" not in reasons(NET)


def test_draws_are_averaged_according_to_the_noise_and_fixed_in_one_attack(
    planned, reasons, adversaries
):
    draws = [
        planned(target).choices[0].adversary.estimator.draws
        for target in (LITTLE_NOISE, MUCH_NOISE)
    ]
    assert draws[0] < draws[1] <= BUDGETS["standard"].draws
    assert isinstance(adversaries(LITTLE_NOISE)["apgd-fixed"].estimator, FixedRandomness)
    assert "apgd-fixed" not in reasons(NET)


class SharedNoise(nn.Module):
    """All images of a batch get the same noise."""

    def forward(self, x):
        return (x + 0.1 * torch.randn(1, *x.shape[1:])).flatten(1) @ WEIGHT


def test_noise_that_a_batch_shares_takes_more_draws(planned):
    draws = [planned(target).job.threat.draws for target in (SharedNoise().eval(), LITTLE_NOISE)]
    assert draws == [80, 20]


def test_a_randomized_defense_is_attacked_by_a_count_of_errors_over_draws(adversaries, reasons):
    adversary = adversaries(LITTLE_NOISE)["pgd-errors"]
    assert adversary.loss == SmoothError()
    assert adversary.estimator.handles_randomness
    assert "pgd-errors" not in reasons(NET)


def test_the_static_net_is_attacked_with_several_losses_and_without_gradients(reasons):
    sources = ("apgd-ce", "apgd-margin", "apgd-t", "square", "rays", "worst case")
    transfers = {f"transfer {name}" for name in sources}
    assert transfers | {"square", "rays"} <= set(reasons(SMOOTH))
    assert not any(name.startswith("transfer") for name in reasons(NET))


def test_adaptation_is_anticipated_and_differentiated_if_possible(planned, reasons):
    names = set(reasons(ADAPTING))
    assert {"fixed-point", "gmsa-avg", "gmsa-min", "apgd-adapt"} <= names
    assert planned(ADAPTING).findings == ()
    assert "apgd-adapt" not in reasons(AdaptingWithoutGradient())


def test_an_audit_that_does_not_anticipate_adaptation_says_so():
    pgd = sp.Direct("pgd", sp.PGD(2))
    plan = plan_for(ADAPTING, [pgd], LINF, X, Y)
    findings = [(finding.name, finding.level) for finding in plan.findings]
    assert findings == [(SymptomName.NOT_ANTICIPATED, Level.SERIOUS)]
    assert [choice.reason for choice in plan.choices] == ["requested"]


@pytest.mark.slow
def test_attacks_that_anticipate_adaptation_are_at_least_as_strong_as_transfer():
    # The defense subtracts the mean of the batch, so an attack that moves all images in one
    # direction has no effect. Only attacks that anticipate the adaptation can know that.
    result = sp.audit(ADAPTING, X, Y, threat=LINF, budget="standard", batch_size=N)
    accuracy = {row.name: row.robust_accuracy for row in result.rows}
    anticipating = ("gmsa-avg", "gmsa-min", "fixed-point", "apgd-adapt")
    assert min(accuracy[name] for name in anticipating) <= accuracy["transfer apgd-ce"]
    assert result.robust_accuracy == min(accuracy.values())


@pytest.mark.parametrize("target", [NET, RANDOM, ADAPTING], ids=["net", "random", "adapting"])
def test_no_adversary_needs_more_passes_than_its_cost(target):
    plan = plan_for(target, (), sp.Threat(LINF, draws=2), X, Y, budget="quick")
    defense = plan.job.defense
    # One pass decides which rows are attacked, where rows are independent and deterministic.
    selection = 1 if defense.unit == "example" and not defense.random else 0
    for choice in plan.choices:
        episode = plan.job.play(choice.adversary, torch.arange(N))
        passes = int((episode.forward + episode.backward).amax())
        assert passes <= choice.passes + selection, choice.name


def test_attacks_escalate_where_rows_are_independent_and_gradients_reliable(adversaries):
    escalating = {name for name, a in adversaries(NET).items() if isinstance(a, Escalate)}
    assert escalating == {"apgd-t", "square"}


@pytest.mark.parametrize(
    ("target", "budget"),
    [(NET, "quick"), (FLAT, "standard"), (RANDOM, "standard"), (ADAPTING, "standard")],
    ids=["quick", "flat", "random", "adapting"],
)
def test_attacks_do_not_escalate_elsewhere(planned, target, budget):
    for choice in planned(target, budget).choices:
        if choice.name != "transfer worst case":  # its source is a plain net
            assert "Escalate" not in str(describe(choice.adversary)), choice.name


def test_attacks_do_not_escalate_if_the_query_limit_is_too_low():
    choices = compose(sp.Plain(NET), sp.Threat(LINF, queries=400), "standard")
    planned = {choice.name: choice.adversary for choice in choices}
    assert isinstance(planned["apgd-t"], sp.MultiTarget)
    assert planned["square"].cost().forward <= 400  # without the long searches
    choices = compose(sp.Plain(NET), sp.Threat(LINF, queries=150), "standard")
    assert isinstance({c.name: c.adversary for c in choices}["square"], sp.Direct)


def test_adversaries_that_exceed_the_query_limit_are_left_out():
    choices = compose(ADAPTING, sp.Threat(LINF, queries=150), "standard")
    gradient = [c.adversary for c in choices if c.adversary.needs == "gradient"]
    assert all(adversary.cost().forward <= 150 for adversary in gradient)
    names = {choice.name for choice in choices}
    assert "gmsa-min" not in names
    assert "square" in names  # it stops at the limit by itself
