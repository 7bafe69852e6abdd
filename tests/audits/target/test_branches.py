"""Discrete branches of a net are found, forced, and attacked with the scores that select them."""

from __future__ import annotations

import pytest
import torch
from tests.audits.probes.toy_targets import probed
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.aims import min_over_views
from saddlepoint.audits.target.branches import AgainstBranch, Branch, ForcedBranch, find_branches
from saddlepoint.rng import Keys
from saddlepoint.selftests.exact import meet
from saddlepoint.selftests.problem import live, relabeled, toward, two_classes

GENERATOR = torch.Generator().manual_seed(0)
PROBLEM = two_classes(60)
X = PROBLEM.x
Y = PROBLEM.y
LINF = sp.Linf(PROBLEM.radius)
OWN = PROBLEM.weight[0] - PROBLEM.weight[1]
EXPERTS = OWN + OWN.std() * torch.randn(2, 16, generator=GENERATOR)
GATE = torch.randn(16, generator=GENERATOR)
ROW_BY_ROW = "argmax row by row"


class Routed(nn.Module):
    """The second of two linear experts answers if the score of the gate is positive."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        centered = x.flatten(1) - 0.5
        gate = centered @ GATE
        margins = centered @ EXPERTS.T
        if self.training:  # both experts answer
            return live(margins.mean(1))
        if self.by == "threshold":
            return live(torch.where(gate > 0, margins[:, 1], margins[:, 0]))
        if self.by == "keyword threshold":
            return live(torch.where(gate.gt(other=0), margins[:, 1], margins[:, 0]))
        scores = torch.stack([-gate, gate], 1)
        if self.by == ROW_BY_ROW:
            rows = zip(margins, scores, strict=True)
            return torch.cat([live(row[options.argmax().item()][None]) for row, options in rows])
        return live(margins.gather(1, self._chosen(scores)[:, None])[:, 0])

    def _chosen(self, scores):
        if self.by == "max":
            return scores.max(1).indices
        if self.by == "topk":
            return scores.topk(1).indices[:, 0]
        return scores.argmax(1)


def robust(problem):
    """[N]: no point of the box is on the side of the gate of an expert that misclassifies it."""
    sign = toward(problem.y)
    low, high = problem.box()
    correct = torch.ones(len(problem.x), dtype=torch.bool)
    for expert, side in zip(EXPERTS.double(), (-1.0, 1.0), strict=True):
        error = -sign[:, None] * expert
        selected = (side * GATE.double()).expand(len(sign), -1)
        normals = torch.stack([error, selected], 1)  # [N, 2, 16]
        correct &= ~meet(normals, -0.5 * normals.sum(2), low, high)
    return correct


@pytest.fixture(params=["threshold", "keyword threshold", "argmax", "max", "topk", ROW_BY_ROW])
def net(request):
    return Routed(request.param).eval()


def branches_of(net):
    return tuple(Branch(0, option, int(net.by == ROW_BY_ROW)) for option in (0, 1))


def context(n):
    return sp.Context(Keys.of(0, torch.arange(n)))


def found_in(net, x=X):
    return find_branches(sp.Plain(net.eval()), x, Y, context(len(x)))


def test_the_branches_of_a_router_are_found_and_forced(net):
    assert found_in(net) == branches_of(net)
    centered = X.flatten(1) - 0.5
    for option, branch in enumerate(branches_of(net)):
        selection, forced = ForcedBranch(sp.Plain(net), branch, Y).trace(X, context(len(X))).views
        torch.testing.assert_close(forced.logits, live(centered @ EXPERTS[option]))
        lead = (2 * option - 1) * (centered @ GATE)
        label_score = selection.logits.gather(1, Y[:, None])[:, 0]
        torch.testing.assert_close(label_score.sign(), -lead.sign())


def test_branches_are_those_of_evaluation_mode(net):
    assert probed(net, X, Y, LINF).facts.branches == branches_of(net)


class Confident(nn.Module):
    """The first of two exits answers if it is confident; the label beside max is not used."""

    def forward(self, x):
        centered = x.flatten(1) - 0.5
        scales = torch.tensor([1.0, -1.0, 0.1])
        first = centered @ EXPERTS[0, :, None] * scales
        second = centered @ EXPERTS[1, :, None] * scales
        confidence, _ = first.softmax(1).max(1)
        return torch.where((confidence > 0.6)[:, None], first, second)


def test_labels_beside_confidences_are_no_branches():
    facts = probed(Confident().eval(), X, Y, LINF).facts
    assert facts.branches == (Branch(1, 0), Branch(1, 1))


def test_a_net_without_decisions_has_no_branches():
    assert probed(PROBLEM.net(), X, Y, LINF).facts.branches == ()


def test_errors_of_a_branch_that_the_image_does_not_take_are_found(net):
    """Gradients stay on the image's side of the gate; the worst case of both sides is known."""
    problem = relabeled(PROBLEM, net)
    truth = float(robust(problem).double().mean())
    pgd = sp.Direct("pgd-branch", sp.PGD(40, momentum=0.75), aim=min_over_views)
    plain = sp.Direct("apgd", sp.APGD(30))
    adversaries = [plain, *(AgainstBranch(pgd, branch) for branch in branches_of(net))]
    threat = sp.Threat(sp.Linf(problem.radius))
    outcomes = sp.evaluate(sp.Plain(net), adversaries, problem.x, problem.y, threat=threat)
    assert outcomes.only([0]).worst_case()[0] > truth + 0.05
    assert outcomes.worst_case()[0] == pytest.approx(truth, abs=0.02)


class Guarded(nn.Module):
    """Compares all images before it chooses for each of them."""

    def forward(self, x):
        if x.amax() > 1:
            x = x / 255
        return Routed("argmax").eval()(x)


def test_a_batch_of_one_image_makes_the_decisions_of_a_larger_batch():
    defense = sp.Plain(Guarded().eval())
    for branch in found_in(Guarded()):
        together = ForcedBranch(defense, branch, Y).trace(X, context(len(X))).last
        alone = [
            ForcedBranch(defense, branch, Y[[k]]).trace(X[[k]], context(1)).last
            for k in range(len(X))
        ]
        torch.testing.assert_close(torch.cat(alone), together)


class Halving(nn.Module):
    """Halves each row until it is small."""

    def forward(self, x):
        rows = []
        for row in x:
            while row.amax() > 1:
                row = row / 2
            rows.append(row)
        return live((torch.stack(rows).flatten(1) - 0.5) @ EXPERTS[0])


def test_a_loop_that_ends_by_a_decision_still_ends_if_the_decision_is_forced():
    assert found_in(Halving()) == ()


class Wide(nn.Module):
    """Divides by the maximum of many features before it chooses one of two branches."""

    def forward(self, x):
        features = x.flatten(1).repeat(1, 8)
        scale = features.abs().max(1, keepdim=True).values
        return Routed("argmax").eval()(x / scale.view(-1, *[1] * (x.ndim - 1)))


def test_the_maximum_of_many_features_does_not_hide_branches():
    assert len(found_in(Wide(), X + 0.5)) == 2


class EarlyExits(nn.Module):
    """Row by row, the first of three exits that is confident; the first exit ends the decisions."""

    def forward(self, x):
        out = []
        for row in x.flatten(1) - 0.5:
            exits = [live((row @ weight)[None]) for weight in (*EXPERTS, GATE)]
            confidence = [logits.softmax(1).amax(1) for logits in exits]
            if confidence[0] > 2:
                out.append(exits[0])
            else:
                out.append(exits[1] if confidence[1] > 2 else exits[2])
        return torch.cat(out)


def test_a_branch_with_another_number_of_decisions_is_left_out():
    defense = sp.Plain(EarlyExits().eval())
    found = found_in(EarlyExits())
    assert {(branch.decision, branch.option) for branch in found} == {(1, 1)}
    unchanged = ForcedBranch(defense, Branch(0, 1, 2), Y).trace(X, context(len(X)))
    torch.testing.assert_close(unchanged.last, defense.trace(X, context(len(X))).last)
