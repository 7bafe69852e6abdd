"""Remedies break more images where there are symptoms, and are not run where there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.linear_defenses import plan_for
from tests.problems import Quantized
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import collect
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.pipeline import InProcess
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.stage import remedy
from saddlepoint.audits.remedies.strategies import DISCRETE, STRATEGIES
from saddlepoint.audits.verdict import ItemName, Level, Symptom, SymptomName
from saddlepoint.defenses import Defense, Trace, View
from saddlepoint.evaluation import Escalate, Threat

N = 24
RADIUS = 0.03
generator = torch.Generator().manual_seed(0)
W = torch.randn(16, generator=generator)
X = 0.5 + 0.12 * torch.randn(N, 1, 4, 4, generator=generator).clamp(-3, 3)
Y = ((X - 0.5).flatten(1) @ W > 0).long()
HEIGHT = ((X - 0.5).flatten(1) @ W).abs()
# Robust accuracy of the linear net: radius times the dual norm.
ROBUST_ACCURACY = float((RADIUS * W.abs().sum() < HEIGHT).double().mean())
# Images that are still correct after half of the distance.
UNBROKEN = RADIUS * W.abs().sum() / 2 < HEIGHT


class Linear(nn.Module):
    """Two classes with logits -z and z, z = scale W (x - 0.5)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.clone())
        self.scale = scale
        self.eval()

    def height(self, x):
        return (x - 0.5).flatten(1) @ self.weight

    def forward(self, x):
        z = self.scale * self.height(x)
        return torch.stack([-z, z], 1)


class Rippled(Linear):
    """The same with a ripple: a thousandth of the value, six times the slope."""

    def height(self, x):
        return super().height(x) + (1e-3 * (6e3 * x.flatten(1)).sin()).sum(1)


class NoisyGradient(Defense):
    """The linear net with deterministic outputs, and a gradient that is mostly noise."""

    random = True

    def __init__(self, noise: float) -> None:
        self.net = Linear()
        self.noise = noise

    def trace(self, x, ctx):
        noise = (self.noise * ctx.randn_like(x) * x).flatten(1).sum(1)
        zero = (noise - noise.detach())[:, None]
        return Trace((View("final", self.net(x) + torch.tensor([-1.0, 1.0]) * zero),))


class Band(nn.Module):
    """Class 1 if the first pixel is within 0.02 of 0.65; a long step jumps over the band."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.tensor(0.65))
        self.eval()

    def forward(self, x):
        z = 0.02 - (x.flatten(1)[:, 0] - self.center).abs()
        return torch.stack([torch.zeros_like(z), z], 1)


class Masked(nn.Module):
    """The linear net without its gradient, plus a useless gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Linear()
        self.eval()

    def forward(self, x):
        useless = x.flatten(1)[:, :2]
        return self.net(x.detach()) + 1e-3 * (useless - useless.detach())


def scores(x):
    """The linear net as a callable, without gradients."""
    return Linear()(x).detach()


def first_round(target, *adversaries, x=X, y=Y, radius=RADIUS, passes=100_000):
    """A plan with named adversaries that may be followed by remedies."""
    plan = plan_for(target, adversaries, sp.Linf(radius), x, y)
    return replace(plan, remedy_passes=passes)


def first_evidence(plan):
    """The evidence before remedies."""
    return collect(replace(plan, remedy_passes=0), InProcess())


def remedies_for(plan, evidence=None):
    """The chosen remedies by name."""
    evidence = first_evidence(plan) if evidence is None else evidence
    return {choice.name: choice for choice in remedy(replace(evidence, plan=plan))}


def remaining(plan, choice):
    """The accuracy under a remedy on the images that it attacks."""
    job = plan.job
    correct = torch.cat([job.play(choice.adversary, rows).correct[0] for rows in job.groups])
    return float(correct[list(choice.adversary.ids)].mean())


def attack(optimizer, name="attack", **parts):
    return sp.Direct(name, optimizer, **parts)


def slow(steps):
    """Steps of an eighth of the radius, from the image itself."""
    return attack(sp.PGD(steps, RADIUS / 8, random_start=False))


def twice(direct):
    """The same attack twice: the second, which breaks nothing more, shows that it converged."""
    return direct, replace(direct, name="again")


MASKED_ROUND = (attack(sp.PGD(10)), sp.Direct("square", sp.Square(20)))


@pytest.fixture(scope="module")
def slow_evidence():
    """The linear net after four steps that cover half of the distance."""
    return first_evidence(first_round(Linear(), slow(4)))


@pytest.fixture(scope="module")
def masked_evidence():
    """A net with useless gradients after a gradient attack and a short query search."""
    return first_evidence(first_round(Masked(), *MASKED_ROUND))


def test_an_attack_that_stopped_early_is_repeated_with_more_steps(slow_evidence):
    """Four steps of an eighth cover half of the distance, twelve all of it: the closed form."""
    plan = replace(slow_evidence.plan, remedy_passes=100_000)
    choice = remedies_for(plan, slow_evidence)["attack-longer"]
    assert "2 times the steps from 2 starts, and with 3 times the steps" in choice.reason
    assert choice.adversary.ids == tuple(UNBROKEN.nonzero()[:, 0].tolist())
    expected = ROBUST_ACCURACY * N / int(UNBROKEN.sum())
    assert remaining(plan, choice) == pytest.approx(expected)


class Waves(nn.Module):
    """cos(400 W x) - 0.99: about one in twenty points is misclassified, and steps do not matter."""

    def forward(self, x):
        z = (400 * (x.flatten(1) @ W.to(x))).cos() - 0.99
        return torch.stack([-z, z], 1)


def test_what_the_diagnostic_broke_is_broken_by_the_remedy():
    """The same attack with the same random keys on the same images."""
    x = X.repeat(8, 1, 1, 1)  # so many that other starts would not break the same ones by chance
    labels = Waves()(x).argmax(1)
    plan = first_round(Waves(), attack(sp.PGD(1, RADIUS / 100), loss=sp.margin), x=x, y=labels)
    evidence = first_evidence(plan)
    compared = evidence.diagnoses.longer
    rows = (evidence.robust >= 0.5).nonzero()[: len(compared.first), 0]
    broken = rows[compared.second < 0.5]
    assert 0 < len(broken) < len(rows), "the problem must have images of both kinds"
    choice = remedies_for(plan, evidence)["attack-longer"]
    after = torch.cat([plan.job.play(choice.adversary, g).correct[0] for g in plan.job.groups])
    assert (after[broken] < 0.5).all()


@pytest.mark.parametrize("name", DISCRETE)
def test_decisions_that_gradients_do_not_show_call_for_more_starts(slow_evidence, name):
    plan = replace(slow_evidence.plan, remedy_passes=100_000)
    assert "pgd-starts" not in remedies_for(plan, slow_evidence)
    finding = Symptom(name, Level.NOTE, "the model selects one of several branches.")
    found = remedies_for(replace(plan, findings=(finding,)), slow_evidence)
    assert name in found["pgd-starts"].against
    assert "short steps from 20 starts" in found["pgd-starts"].reason
    assert "100 steps toward each of at most 9 classes" in found["apgd-t-longer"].reason


class Rounded(Linear):
    """Four levels of each pixel, by comparisons."""

    def height(self, x):
        levels = sum((x > threshold).float() for threshold in (0.3, 0.5, 0.7))
        return super().height(levels / 3)


def test_surrogates_of_a_width_are_also_tried_with_other_widths():
    y = Rounded()(X).argmax(1)
    composed = plan_for(Rounded(), (), sp.Linf(0.02), X, y, budget="standard", allow_unusual=True)
    bypassing = next(a for a in composed.adversaries if a.name == "apgd-ce")
    # The first round is one attack, so that the test is fast; probing is that of a whole audit.
    first = replace(composed, adversaries=(composed.adversaries[0], bypassing), choices=())
    found = remedies_for(replace(first, remedy_passes=100_000), first_evidence(first))
    assert SymptomName.NO_GRADIENT in found["pgd-widths"].against
    place = "narrower and wider surrogates at `test_remedies.py:"
    assert place in found["pgd-widths"].reason
    assert "500 queries from where 16 gradient attacks ended, 4 times" in found["evolution"].reason


def test_saturated_logits_are_attacked_with_the_margin():
    """exp(-2000 * 0.1) vanishes beside 1 in float32: the cross-entropy is flat at most images."""
    plan = first_round(Linear(2000), *twice(attack(sp.PGD(20), loss=sp.cross_entropy)))
    choice = remedies_for(plan)["attack-margin"]
    assert "with the margin as its loss" in choice.reason
    expected = ROBUST_ACCURACY * N / len(choice.adversary.ids)
    assert remaining(plan, choice) == pytest.approx(expected)


def test_gradients_of_a_rippled_landscape_are_averaged_over_nearby_points():
    plan = first_round(Rippled(), *twice(attack(sp.PGD(10))))
    choice = remedies_for(plan)["attack-smoothed"]
    assert "gradients averaged over nearby points" in choice.reason
    assert remaining(plan, choice) < 1


def test_noisy_gradients_are_averaged_over_more_draws():
    eot = attack(sp.PGD(5, random_start=False), loss=sp.margin, estimator=sp.EoT(2))
    plan = first_round(NoisyGradient(20.0), eot)
    choice = remedies_for(plan)["attack-draws"]
    assert "averaged over 8 draws" in choice.reason
    assert remaining(plan, choice) < 1
    assert "attack-draws" not in remedies_for(first_round(NoisyGradient(0.01), eot))


def test_sites_with_useless_gradients_are_bypassed():
    """Rounding to 256 levels moves a pixel by at most 1/512."""
    plan = first_round(Quantized(Linear(), levels=256), *twice(attack(sp.PGD(10))))
    choice = remedies_for(plan)["pgd-bpda"]
    assert "BPDA(identity) at `quantize`" in choice.reason
    fewest, most = (int(((RADIUS + side / 512) * W.abs().sum() < HEIGHT).sum()) for side in (1, -1))
    assert fewest <= remaining(plan, choice) * len(choice.adversary.ids) <= most


def test_masked_gradients_lead_to_more_queries_and_score_differences(masked_evidence):
    plan = replace(masked_evidence.plan, remedy_passes=100_000)
    found = remedies_for(plan, masked_evidence)
    for name in ("square-longer", "apgd-spsa"):
        assert found[name].reason.startswith(SymptomName.BLACK_BOX_STRONGER)
        assert remaining(plan, found[name]) < 1


def test_the_first_search_of_an_escalation_is_repeated_with_more_queries():
    searches = [sp.Direct("square", sp.Square(queries)) for queries in (20, 50)]
    plan = first_round(Masked(), attack(sp.PGD(10)), Escalate(*searches, 0.1))
    choice = remedies_for(plan)["square-longer"]
    assert choice.adversary.adversary.adversary.first == sp.Direct("square", sp.Square(80))


@pytest.mark.parametrize("loss", [sp.cross_entropy, sp.margin])
def test_a_net_with_good_gradients_needs_no_remedy(loss):
    square = sp.Direct("square", sp.Square(20))
    assert remedies_for(first_round(Linear(), attack(sp.PGD(20), loss=loss), square)) == {}


def test_errors_that_long_steps_jump_over_are_found_by_short_steps_and_a_minimum_norm_attack():
    x = torch.linspace(0.54, 0.57, 20)[:, None, None, None]
    data = {"x": x, "y": torch.zeros(20, dtype=torch.long), "radius": 0.15}
    plan = first_round(Band(), attack(sp.PGD(2, 0.15, random_start=False)), **data)
    found = remedies_for(plan)
    assert remaining(plan, found["pgd-short"]) == remaining(plan, found["fmn"]) == 0
    shorter = attack(sp.PGD(2, 0.095, random_start=False))
    assert remedies_for(first_round(Band(), shorter, **data)) == {}


def test_without_gradients_a_search_with_increasing_loss_gets_more_queries():
    plan = first_round(scores, sp.Direct("square", sp.Square(16)))
    choice = remedies_for(plan)["square-longer"]
    assert choice.reason.startswith(SymptomName.LOSS_INCREASING)
    assert remaining(plan, choice) < 1
    assert remedies_for(first_round(scores, sp.Direct("square", sp.Square(100)))) == {}


class RandomLabels(Defense):
    """Half of the predictions are wrong, whatever the image."""

    random = True

    def trace(self, x, ctx):
        flat = x.flatten(1)
        sign = 2 * (ctx.randn_like(x).flatten(1)[:, 0] > 0) - 1
        z = sign + 0 * flat.sum(1) + 1e-9 * flat @ W
        return Trace((View("final", torch.stack([-z, z], 1)),))


def test_images_that_were_correct_by_chance_do_not_call_for_more_steps():
    """Images that were correct most often are correct half of the time when evaluated again."""
    eot = attack(sp.PGD(2), estimator=sp.EoT(2))
    found = remedies_for(first_round(RandomLabels(), *twice(eot)))
    assert not any(ItemName.CONVERGED in choice.against for choice in found.values())


def test_remedies_cost_at_most_the_passes_of_the_budget_and_each_at_most_half(masked_evidence):
    plan = replace(masked_evidence.plan, remedy_passes=240)
    found = remedies_for(plan, masked_evidence).values()
    totals = [choice.passes * len(choice.adversary.ids) for choice in found]
    assert len(found) >= 2
    assert sum(totals) <= 240 * N
    assert max(totals) <= 120 * N


def test_fewer_unbroken_images_get_more_passes_each():
    def passes(share):
        """Of the longer attack, per image, if a share of the images is correct without attack."""
        y = torch.where(torch.arange(N) < share * N, Y, 1 - Y)
        found = remedies_for(first_round(Linear(), slow(4), y=y, passes=80))
        return found["attack-longer"].passes

    assert passes(1.0) < passes(0.5)


def test_only_plans_with_composed_adversaries_have_passes_for_remedies():
    def planned(*adversaries, **settings):
        return plan_for(Linear(), adversaries, sp.Linf(RADIUS), X, Y, **settings)

    standard = planned()
    assert planned(budget="quick").remedy_passes == 0
    assert planned(slow(4)).remedy_passes == 0
    costs = [choice.adversary.first_stage_cost().total for choice in standard.choices]
    assert standard.remedy_passes == 3 * sum(costs) // 4
    assert planned(budget="thorough").remedy_passes > standard.remedy_passes


def test_only_the_first_stage_of_an_escalation_counts_for_the_cost_of_a_plan():
    first = sp.Direct("apgd", sp.APGD(10))
    then = sp.Direct("apgd", sp.APGD(100))
    escalation = Escalate(first, then, within=0.1)
    assert escalation.first_stage_cost() == first.cost()
    transfer = sp.Transfer(escalation, sp.Plain(Linear()))
    assert transfer.first_stage_cost() == first.cost()
    assert escalation.cost().total > then.cost().total


def test_more_queries_are_multiples_of_the_first_search_of_the_planned_escalation():
    choices = compose(sp.Plain(Linear()), Threat(sp.Linf(RADIUS)), "standard")
    square = next(choice.adversary for choice in choices if choice.name == "square")
    assert isinstance(square, Escalate)
    evidence = first_evidence(first_round(scores, square))
    found = [
        variant.adversary
        for strategy in STRATEGIES
        if SymptomName.BLACK_BOX_STRONGER in strategy.triggers
        for variant in strategy.variants(Planner(evidence))
        if variant.name == "square-longer"
    ]
    repeated, *single = found
    queries = square.first.attack.queries
    assert queries == 80  # multiples of at least 200 queries
    assert [one.attack.queries for one in single] == [12 * queries, 6 * queries]
    assert repeated == sp.Restarts(single[0], 3)


def test_a_decisive_remedy_attacks_the_closest_images_if_passes_are_too_few(masked_evidence):
    # 40 queries, 40 gradient steps from where they end, and one pass that decides where steps are
    # needed.
    each = 40 + 81 + 1
    # Half of the passes for one remedy: nine images, or six with 80 queries.
    plan = replace(masked_evidence.plan, remedy_passes=2 * 9 * each / N)
    clean, *attacked = masked_evidence.groups[0].outcomes.episodes
    share = torch.stack([episode.margin[0] for episode in attacked]).amax(0) / clean.margin[0]
    correct = torch.stack([episode.correct[0] for episode in attacked]).amin(0)
    unbroken = (correct > 0).nonzero()[:, 0].tolist()
    assert len(unbroken) > 9
    choice = remedies_for(plan, masked_evidence)["square-longer"]
    assert choice.adversary.adversary.first.attack.queries == 40
    assert choice.passes == each
    closest = sorted(unbroken, key=lambda k: share[k])[:9]
    assert choice.adversary.ids == tuple(sorted(closest))
    # Seven images are too few to show an effect.
    fewer = replace(plan, remedy_passes=2 * 7 * each / N)
    assert "square-longer" not in remedies_for(fewer, masked_evidence)


def test_a_remedy_that_decides_no_verdict_runs_on_all_images_or_not_at_all():
    plan = first_round(scores, sp.Direct("square", sp.Square(16)), passes=2 * 10 * 32 / N)
    evidence = first_evidence(plan)
    assert remedies_for(plan, evidence) == {}
    found = remedies_for(replace(plan, remedy_passes=2 * 32), evidence)
    assert found["square-longer"].reason.startswith(SymptomName.LOSS_INCREASING)


def test_remedies_are_rows_of_the_audit_and_the_verdict_comes_after_them():
    plan = first_round(Linear(), slow(4))
    done = conclude(collect(plan, InProcess()))
    assert done.robust_accuracy == pytest.approx(ROBUST_ACCURACY)
    assert [row.name for row in done.rows][:2] == ["attack", "attack-longer"]
    assert done.rows[1].robust_accuracy == done.rows[1].running == pytest.approx(ROBUST_ACCURACY)
    assert done.rows[1].attacked == int(UNBROKEN.sum())
    again = conclude(collect(plan, InProcess()))
    assert [row.reason for row in done.rows] == [row.reason for row in again.rows]
    assert torch.equal(done.worst_points, again.worst_points)
    without = conclude(collect(replace(plan, remedy_passes=0), InProcess()))
    assert without.rows[-1].name == "attack"


@pytest.mark.slow
def test_a_symptom_that_remains_names_the_remedies_that_were_run():
    done = conclude(collect(first_round(Masked(), *MASKED_ROUND), InProcess()))
    name = SymptomName.BLACK_BOX_STRONGER
    symptom = next(symptom for symptom in done.symptoms if symptom.name is name)
    assert "Remedies: " in symptom.message
    assert "apgd-spsa, which broke" in symptom.message
