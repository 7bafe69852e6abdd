"""A net that takes one of several ways for each image is attacked on all of them, each together with what decides for it."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.target.check import check
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.aims import max_over_views
from saddlepoint.audits.target.branches import AgainstBranch, Branch, ForcedBranch, branches
from saddlepoint.rng import Keys
from saddlepoint.selftests.exact import meet
from saddlepoint.selftests.problem import live, relabeled, toward, two_classes

GENERATOR = torch.Generator().manual_seed(0)
PROBLEM = two_classes(60)
OWN = PROBLEM.weight[0] - PROBLEM.weight[1]
EXPERTS = OWN + OWN.std() * torch.randn(2, 16, generator=GENERATOR)
GATE = torch.randn(16, generator=GENERATOR)


class Routed(nn.Module):
    """The first of two linear experts answers unless the gate's score is positive."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        centerd = x.flatten(1) - 0.5
        gate = centerd @ GATE
        margins = centerd @ EXPERTS.T
        if self.training:  # both answer: what it does elsewhere says nothing about its ways
            return live(margins.mean(1))
        if self.by == "a threshold":
            return live(torch.where(gate > 0, margins[:, 1], margins[:, 0]))
        scores = torch.stack([-gate, gate], 1)
        if self.by == "an argmax for one row after the other":
            return torch.cat(
                [
                    live(row[ways.argmax().item()][None])
                    for row, ways in zip(margins, scores, strict=True)
                ]
            )
        way = {
            "an argmax": scores.argmax,
            "max": lambda dim: scores.max(dim).indices,
            "topk": scores.topk,
        }[self.by](1)
        way = way.indices[:, 0] if self.by == "topk" else way
        return live(margins.gather(1, way[:, None])[:, 0])


def stands(problem):
    """[N]: no point of the box lies on an expert's side of the gate where that expert errs."""
    sign = toward(problem.y)
    (low, high) = problem.box()
    right = torch.ones(len(problem.x), dtype=torch.bool)
    for expert, side in zip(EXPERTS.double(), (-1.0, 1.0), strict=True):
        normals = torch.stack(
            [-sign[:, None] * expert, (side * GATE.double()).expand(len(sign), -1)], 1
        )  # [N, 2, 16]
        right &= ~meet(normals, -0.5 * normals.sum(2), low, high)
    return right


@pytest.fixture(
    params=["a threshold", "an argmax", "max", "topk", "an argmax for one row after the other"]
)
def net(request):
    return Routed(request.param).eval()


def both_of(net):
    return tuple(Branch(0, way, int("row" in net.by)) for way in (0, 1))


def context(n):
    return sp.Context(Keys.of(0, torch.arange(n)))


def test_the_ways_of_a_router_are_found_and_forced(net):
    x = PROBLEM.x
    y = PROBLEM.y
    assert branches(sp.Plain(net), x, y, context(len(x))) == both_of(net)
    for way, route in enumerate(both_of(net)):
        choice, forced = ForcedBranch(sp.Plain(net), route, y).trace(x, context(len(x))).views
        torch.testing.assert_close(forced.logits, live((x.flatten(1) - 0.5) @ EXPERTS[way]))
        ahead = (2 * way - 1) * ((x.flatten(1) - 0.5) @ GATE)
        preferred = choice.logits.gather(1, y[:, None])[:, 0]
        torch.testing.assert_close(preferred.sign(), -ahead.sign())


def test_a_net_that_does_something_else_in_training_has_its_ways(net):
    assert check(net, PROBLEM.x, PROBLEM.y, sp.Linf(PROBLEM.radius)).branches == both_of(net)


class Sure(nn.Module):
    """Of two exits of three classes the first that is sure answers; how sure is read off beside a label that is not used."""

    def forward(self, x):
        first, second = (
            (x.flatten(1) - 0.5) @ EXPERTS[k, :, None] * torch.tensor([1.0, -1.0, 0.1])
            for k in (0, 1)
        )
        sure, _ = first.softmax(1).max(1)
        return torch.where((sure > 0.6)[:, None], first, second)


def test_labels_beside_confidences_are_no_ways():
    assert check(Sure().eval(), PROBLEM.x, PROBLEM.y, sp.Linf(PROBLEM.radius)).branches == (
        Branch(1, 0),
        Branch(1, 1),
    )


def test_a_net_without_choices_has_no_ways():
    assert check(PROBLEM.net(), PROBLEM.x, PROBLEM.y, sp.Linf(PROBLEM.radius)).branches == ()


def test_what_errs_behind_the_border_of_another_expert_is_found(net):
    """Gradients stay on the side where the image lies; the worst case of both sides is known in closed form."""
    problem = relabeled(PROBLEM, net)
    truth = float(stands(problem).double().mean())
    pgd = sp.Direct("pgd-route", sp.PGD(40, momentum=0.75), aim=max_over_views)
    plain = sp.Direct("apgd", sp.APGD(30))
    sent = [plain, *(AgainstBranch(pgd, route) for route in both_of(net))]
    threat = sp.Threat(sp.Linf(problem.radius))
    outcomes = sp.evaluate(sp.Plain(net), sent, problem.x, problem.y, threat=threat)
    assert outcomes.only([0]).worst_case()[0] > truth + 0.05
    assert outcomes.worst_case()[0] == pytest.approx(truth, abs=0.02)


class Guarded(nn.Module):
    """Looks at all of its images before it chooses for each: the choice of a batch of one is still the second comparison."""

    def forward(self, x):
        if x.amax() > 1:
            x = x / 255
        return Routed("an argmax").eval()(x)


def test_a_batch_of_one_makes_the_choices_that_a_batch_makes():
    x = PROBLEM.x
    y = PROBLEM.y
    defense = sp.Plain(Guarded().eval())
    for route in branches(defense, x, y, context(len(x))):
        together = ForcedBranch(defense, route, y).trace(x, context(len(x))).last
        alone = [
            ForcedBranch(defense, route, y[[k]]).trace(x[[k]], context(1)).last
            for k in range(len(x))
        ]
        torch.testing.assert_close(torch.cat(alone), together)


class Halving(nn.Module):
    """Each row is halved until it is small."""

    def forward(self, x):
        rows = []
        for row in x:
            while row.amax() > 1:
                row = row / 2
            rows.append(row)
        return live((torch.stack(rows).flatten(1) - 0.5) @ EXPERTS[0])


def test_a_loop_that_ends_by_a_choice_is_not_held_up_for_ever():
    x = PROBLEM.x
    y = PROBLEM.y
    assert branches(sp.Plain(Halving().eval()), x, y, context(len(x))) == ()


class Wide(nn.Module):
    """Divides by the largest of many features before it chooses between two ways."""

    def forward(self, x):
        many = x.flatten(1).repeat(1, 8)
        scale = many.abs().max(1, keepdim=True).values
        return Routed("an argmax").eval()(x / scale.view(-1, *[1] * (x.ndim - 1)))


def test_the_largest_of_many_features_hides_no_ways():
    x = PROBLEM.x + 0.5
    y = PROBLEM.y
    assert len(branches(sp.Plain(Wide().eval()), x, y, context(len(x)))) == 2


class Leaving(nn.Module):
    """Row by row, the first of three exits that is sure: who leaves at the first makes no second choice."""

    def forward(self, x):
        out = []
        for row in x.flatten(1) - 0.5:
            exits = [
                live((row @ EXPERTS[0])[None]),
                live((row @ EXPERTS[1])[None]),
                live((row @ GATE)[None]),
            ]
            sure = [e.softmax(1).amax(1) for e in exits]
            out.append(exits[0] if sure[0] > 2 else exits[1] if sure[1] > 2 else exits[2])
        return torch.cat(out)


def test_a_way_on_which_rows_choose_otherwise_often_is_none():
    x = PROBLEM.x
    y = PROBLEM.y
    defense = sp.Plain(Leaving().eval())
    assert {(route.choice, route.way) for route in branches(defense, x, y, context(len(x)))} == {
        (1, 1)
    }
    same = ForcedBranch(defense, Branch(0, 1, 2), y).trace(x, context(len(x)))
    torch.testing.assert_close(same.last, defense.trace(x, context(len(x))).last)
