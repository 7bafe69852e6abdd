"""What is tried for what a first round shows: on targets where it takes what was left, and on twins where nothing asks for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from saddlepoint.audits.plan import Evidence, plan
from saddlepoint.audits.planning.cost import entrance, price
from saddlepoint.audits.planning.properties import everything
from tests.problems import Quantized
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.cells import Group, Job
from saddlepoint.audits.diagnostics.checklist import CONVERGED
from saddlepoint.audits.remedies.strategies import _queries, remedies
from saddlepoint.defenses import Defense, Trace, View
from saddlepoint.evaluation import FixedPoints, OnExamples
from saddlepoint.evaluation.escalation import Escalate
from saddlepoint.runs.runner import run
from saddlepoint.runs.work import Work

N = 24
RADIUS = 0.03
generator = torch.Generator().manual_seed(0)
W = torch.randn(16, generator=generator)
X = 0.5 + 0.12 * torch.randn(N, 1, 4, 4, generator=generator).clamp(-3, 3)
Y = ((X - 0.5).flatten(1) @ W > 0).long()
HEIGHT = ((X - 0.5).flatten(1) @ W).abs()
LEFT = float(
    (RADIUS * W.abs().sum() < HEIGHT).double().mean()
)  # of the linear net: radius times the dual norm


class Linear(nn.Module):
    """Two classes, 2 W (x - 0.5) apart, times `scale`."""

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


class Jagged(Linear):
    """The same but for a tremor: a thousandth in value, six times the slope."""

    def height(self, x):
        return super().height(x) + (1e-3 * (6e3 * x.flatten(1)).sin()).sum(1)


class Shaken(Defense):
    """The linear net; what it answers is certain, its gradient is mostly noise."""

    random = True

    def __init__(self, noise: float) -> None:
        self.net = Linear()
        self.noise = noise

    def trace(self, x, ctx):
        tremor = (self.noise * ctx.randn_like(x) * x).flatten(1).sum(1)
        z = self.net(x) + torch.tensor([-1.0, 1.0]) * (tremor - tremor.detach())[:, None]
        return Trace((View("final", z),))


class Band(nn.Module):
    """Of one pixel: another class within 0.02 of 0.65, which a long step passes over."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.tensor(0.65))
        self.eval()

    def forward(self, x):
        z = 0.02 - (x.flatten(1)[:, 0] - self.anchor).abs()
        return torch.stack([torch.zeros_like(z), z], 1)


class Silent(nn.Module):
    """The linear net out of autograd's sight, with a slope that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Linear()
        self.eval()

    def forward(self, x):
        wrong = x.flatten(1)[:, :2]
        return self.net(x.detach()) + 1e-3 * (wrong - wrong.detach())


def planned(target, *sent, x=X, y=Y, radius=RADIUS, allowance=100_000):
    """What somebody sends is followed by no remedy; here it is a first round that may be."""
    return replace(
        plan(target, x, y, threat=sp.Linf(radius), adversaries=sent), allowance=allowance
    )


def prescribed(asked):
    """By name: the remedies for what the first round shows."""
    job = asked.job
    groups = [
        Group.of(job, rows, [job.play(sent, rows) for sent in asked.adversaries])
        for rows in job.groups
    ]
    return {choice.name: choice for choice in remedies(asked, Evidence.of(asked, groups))}


def left(asked, choice):
    """What a remedy leaves of the images that it is for."""
    right = torch.cat(
        [asked.job.play(choice.adversary, rows).correct[0] for rows in asked.job.groups]
    )
    return float(right[list(choice.adversary.ids)].mean())


def climb(attack, name="climb", **parts):
    return sp.Direct(name, attack, **parts)


def slow(steps):
    """An eighth of the radius per step, from the image itself."""
    return climb(sp.PGD(steps, RADIUS / 8, random_start=False))


STANDING = RADIUS * W.abs().sum() / 2 < HEIGHT  # after half of the way


def twice(direct):
    """Two of the same: the second, which takes nothing, says that the first had arrived."""
    return direct, replace(direct, name="again")


def test_an_attack_that_was_stopped_on_its_way_is_sent_again_for_longer_and_arrives():
    """Four steps of an eighth lead half way, twelve all the way: to the closed form."""
    asked = planned(Linear(), slow(4))
    choice = prescribed(asked)["climb-longer"]
    assert "climb again with 3 times the steps from 2 starts" in choice.reason
    assert choice.adversary.ids == tuple(STANDING.nonzero()[:, 0].tolist())
    assert left(asked, choice) == pytest.approx(LEFT * N / int(STANDING.sum()))


def test_saturated_scores_are_attacked_with_a_loss_that_does_not_saturate():
    """exp(-2000 * 0.1) is nothing beside one in float32: the cross-entropy is flat at most images."""
    asked = planned(Linear(2000), *twice(climb(sp.PGD(20), loss=sp.cross_entropy)))
    choice = prescribed(asked)["climb-margin"]
    assert "another loss, the margin" in choice.reason
    assert left(asked, choice) == pytest.approx(LEFT * N / len(choice.adversary.ids))


def test_gradients_of_a_jagged_landscape_are_averaged_over_neighbors():
    asked = planned(Jagged(), *twice(climb(sp.PGD(10))))
    choice = prescribed(asked)["climb-smoothed"]
    assert "gradients averaged over neighbors" in choice.reason
    assert left(asked, choice) < 1


def test_noisy_gradients_are_averaged_over_more_draws():
    sent = climb(sp.PGD(5, random_start=False), loss=sp.margin, estimator=sp.EoT(2))
    asked = planned(Shaken(20.0), sent)
    choice = prescribed(asked)["climb-draws"]
    assert "averaged over 8 draws" in choice.reason
    assert left(asked, choice) < 1
    assert "climb-draws" not in prescribed(planned(Shaken(0.01), sent))


def test_sites_whose_gradients_lead_nowhere_are_led_around():
    """Rounding to 256 levels moves a pixel by at most 1/512."""
    asked = planned(Quantized(Linear(), levels=256), *twice(climb(sp.PGD(10))))
    choice = prescribed(asked)["pgd-bpda"]
    assert "BPDA(identity) at `quantize`" in choice.reason
    stands = [int(((RADIUS + side / 512) * W.abs().sum() < HEIGHT).sum()) for side in (1, -1)]
    assert stands[0] <= left(asked, choice) * len(choice.adversary.ids) <= stands[1]


def test_what_scores_alone_find_is_sought_with_more_queries_and_from_differences():
    asked = planned(Silent(), climb(sp.PGD(10)), sp.Direct("square", sp.Square(20)))
    found = prescribed(asked)
    for name in ("square-longer", "apgd-spsa"):
        assert found[name].reason.startswith("black box beats white box")
        assert left(asked, found[name]) < 1


def test_of_a_pursuit_the_search_that_all_images_met_is_lengthened():
    hunt = Escalate(sp.Direct("square", sp.Square(20)), sp.Direct("square", sp.Square(50)), 0.1)
    choice = prescribed(planned(Silent(), climb(sp.PGD(10)), hunt))["square-longer"]
    assert choice.adversary.adversary.adversary.first == sp.Direct("square", sp.Square(80))


@pytest.mark.parametrize("loss", [sp.cross_entropy, sp.margin])
def test_a_net_whose_gradients_lead_all_the_way_calls_for_nothing(loss):
    """The twin of all targets above: as they are, but for what hides the way."""
    assert (
        prescribed(
            planned(Linear(), climb(sp.PGD(20), loss=loss), sp.Direct("square", sp.Square(20)))
        )
        == {}
    )


def test_what_long_steps_pass_over_is_found_by_short_ones_and_by_the_nearest_mistake():
    x = torch.linspace(0.54, 0.57, 20)[:, None, None, None]
    y = torch.zeros(20, dtype=torch.long)
    radius = 0.15
    asked = planned(Band(), climb(sp.PGD(2, radius, random_start=False)), x=x, y=y, radius=radius)
    found = prescribed(asked)
    assert left(asked, found["pgd-short"]) == left(asked, found["fmn"]) == 0
    arrived = climb(sp.PGD(2, 0.095, random_start=False))
    assert prescribed(planned(Band(), arrived, x=x, y=y, radius=radius)) == {}


def test_where_there_are_no_gradients_an_attack_that_still_rises_gets_more_queries():
    def scores(x):
        return Linear()(x).detach()

    asked = planned(scores, sp.Direct("square", sp.Square(16)))
    choice = prescribed(asked)["square-longer"]
    assert choice.reason.startswith("still rising")
    assert left(asked, choice) < 1
    assert prescribed(planned(scores, sp.Direct("square", sp.Square(100)))) == {}


def test_images_that_were_lucky_once_are_no_reason_to_climb_for_longer():
    """Half of the answers are wrong whatever is sent: asked again, those that were right most often are right half of the time."""

    class Lucky(Defense):
        random = True

        def trace(self, x, ctx):
            z = (
                (2 * (ctx.randn_like(x).flatten(1)[:, 0] > 0) - 1)
                + 0 * x.flatten(1).sum(1)
                + 1e-9 * x.flatten(1) @ W
            )
            return Trace((View("final", torch.stack([-z, z], 1)),))

    found = prescribed(planned(Lucky(), *twice(climb(sp.PGD(2), estimator=sp.EoT(2)))))
    assert not any(CONVERGED in choice.against for choice in found.values())


# -- prices -----------------------------------------------------------------------------------------------------------------------


def test_all_remedies_together_cost_no_more_than_the_budget_has_and_each_no_more_than_half():
    asked = planned(Silent(), climb(sp.PGD(10)), sp.Direct("square", sp.Square(20)), allowance=240)
    found = prescribed(asked).values()
    totals = [choice.passes * len(choice.adversary.ids) for choice in found]
    assert len(found) >= 2
    assert sum(totals) <= 240 * N
    assert max(totals) <= 120 * N


def test_the_fewer_stand_the_more_is_spent_on_each():
    def passes(share):
        """Of the longer climb, per image that stands, where a share of the images stands to begin with."""
        y = torch.where(torch.arange(N) < share * N, Y, 1 - Y)
        found = prescribed(planned(Linear(), slow(4), y=y, allowance=80))
        return found["climb-longer"].passes

    assert passes(1.0) < passes(0.5)


def test_only_budgets_that_compose_a_suite_of_their_own_have_something_left_for_remedies():
    def made(**asked):
        return plan(Linear(), X, Y, threat=sp.Linf(RADIUS), **asked)

    assert made(budget="quick").allowance == made(adversaries=[slow(4)]).allowance == 0
    assert (
        made().allowance
        == 3 * sum(entrance(choice.adversary).total for choice in made().choices) // 4
    )
    assert made(budget="thorough").allowance > made().allowance


# -- the whole audit --------------------------------------------------------------------------------------------------------------


def test_remedies_are_rows_like_others_and_the_verdict_is_written_after_them():
    work = Work.of(planned(Linear(), slow(4)))
    done = run(work)
    again = run(work)
    assert done.robust_accuracy == pytest.approx(LEFT)
    assert [row.name for row in done.rows][:2] == ["climb", "climb-longer"]
    assert done.rows[1].robust_accuracy == done.rows[1].running == pytest.approx(LEFT)
    assert done.rows[1].attacked == int(STANDING.sum())
    assert [row.reason for row in done.rows] == [row.reason for row in again.rows]
    assert torch.equal(done.worst_points, again.worst_points)
    assert run(replace(work, plan=replace(work.plan, allowance=0))).rows[-1].name == "climb"


def test_what_is_met_again_says_what_was_tried_for_it():
    done = run(Work.of(planned(Silent(), climb(sp.PGD(10)), sp.Direct("square", sp.Square(20)))))
    met = next(s for s in done.symptoms if s.name == "black box beats white box")
    assert "Tried: " in met.message
    assert "apgd-spsa, which took" in met.message


# -- some examples only -----------------------------------------------------------------------------------------------------------


class Mean(Defense):
    """Rows that answer together: each by the mean of its batch."""

    coupled = True

    def trace(self, x, ctx):
        z = Linear()(x)
        return Trace((View("final", z.mean(0, keepdim=True).expand_as(z)),))


@pytest.mark.parametrize(
    ("target", "met"),
    [(sp.Plain(Linear()), [3, 4, 20]), (Mean(), [*range(8), *range(16, 24)])],
    ids=["rows", "batches"],
)
def test_an_adversary_among_some_examples_leaves_the_others_alone(target, met):
    job = Job(target, X, Y, sp.Threat(sp.Linf(RADIUS)), 0, 8)
    sent = slow(4)
    whole, part = (
        [job.play(a, rows) for rows in job.groups]
        for a in (sent, OnExamples("some", sent, (3, 4, 20)))
    )
    points = torch.cat([e.points for e in part])
    forward = torch.cat([e.forward for e in part])
    others = torch.tensor([k for k in range(N) if k not in met])
    assert torch.equal(points[met], torch.cat([e.points for e in whole])[met])
    assert torch.equal(points[others], X[others])
    assert forward[others].sum() == 0 < forward[met].amin()


def test_only_what_everybody_pays_counts_for_what_remedies_may_cost():
    first, then = (sp.Direct("apgd", sp.APGD(steps)) for steps in (10, 100))
    pursuit = Escalate(first, then, within=0.1)
    assert entrance(pursuit) == price(first)
    assert entrance(sp.Transfer(pursuit, sp.Plain(Linear()))) == price(first)
    assert price(pursuit).total > price(then).total


def test_of_a_search_that_pursues_the_first_look_is_made_longer():
    square = next(
        c.adversary
        for c in plan(Linear(), X, Y, threat=sp.Linf(RADIUS)).choices
        if c.name == "square"
    )
    assert isinstance(square, Escalate)
    trials = SimpleNamespace(
        sent=everything([FixedPoints(), square]), rows=[SimpleNamespace(robust_accuracy=0.5)]
    )
    thrice, *once = (
        size.adversary
        for size in _queries(SimpleNamespace(trials=trials, onward=lambda search: search))
    )
    look = square.first.attack.queries
    assert [size.attack.queries for size in once] == [4 * look, 2 * look]
    assert thrice == sp.Restarts(once[0], 3)


def test_where_not_all_that_stand_can_be_met_those_are_that_came_nearest():
    first = climb(sp.PGD(10)), sp.Direct("square", sp.Square(20))
    each = (
        40 + 81 + 1
    )  # queries, forty steps from where they end, and the look that tells where steps are needed
    asked = planned(
        Silent(), *first, allowance=2 * 9 * each / N
    )  # half of it: nine images, or six that get 80 queries
    clean, *moved = (asked.job.play(sent, asked.job.groups[0]) for sent in asked.adversaries)
    share = torch.stack([episode.margin[0] for episode in moved]).amax(0) / clean.margin[0]
    stands = (
        (torch.stack([episode.correct[0] for episode in moved]).amin(0) > 0)
        .nonzero()[:, 0]
        .tolist()
    )
    assert len(stands) > 9
    choice = prescribed(asked)["square-longer"]
    assert choice.adversary.adversary.first.attack.queries == 40
    assert choice.passes == each
    assert choice.adversary.ids == tuple(sorted(sorted(stands, key=lambda k: share[k])[:9]))
    few = planned(Silent(), *first, allowance=2 * 7 * each / N)  # too few to show anything
    assert "square-longer" not in prescribed(few)


def test_what_no_verdict_hangs_on_is_tried_on_all_images_or_on_none():
    def scores(x):
        return Linear()(x).detach()

    asked = planned(scores, sp.Direct("square", sp.Square(16)), allowance=2 * 10 * 32 / N)
    assert prescribed(asked) == {}
    assert prescribed(replace(asked, allowance=2 * 32))["square-longer"].reason.startswith(
        "still rising"
    )
