"""Outputs that do not rank the wrong classes give no loss a direction; a layer inside may."""

from __future__ import annotations

import pytest
import torch
from tests.audits.probes.toy_targets import probed
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.target.instrument import Instrumented
from saddlepoint.audits.verdict import Level, SymptomName
from saddlepoint.rng import Keys
from saddlepoint.selftests.problem import four_classes, left

PROBLEM = four_classes(20)
X = PROBLEM.x
Y = PROBLEM.y
LINF = sp.Linf(PROBLEM.radius)
SITE = "scores of net"


def highest_only(z):
    """The highest score minus the lowest, and zeros."""
    highest, index = (z - z.amin(1, keepdim=True)).max(1, keepdim=True)
    return torch.zeros_like(z).scatter(1, index, highest)


class HighestOnly(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return highest_only(self.net(x))


class Inline(nn.Module):
    """The same without a layer inside."""

    def forward(self, x):
        return highest_only(x.flatten(1) @ PROBLEM.weight.T + PROBLEM.bias)


HIDING = HighestOnly(PROBLEM.net()).eval()


def trait_of(target):
    return sp.probe(target, X, Y, threat=LINF)[TraitName.HIDDEN_SCORES]


def test_the_layer_that_ranks_the_classes_is_found():
    found = trait_of(HIDING)
    assert found.present
    assert found.places == (SITE,)
    assert not trait_of(PROBLEM.net()).present


def test_attacks_use_the_scores_inside():
    result = sp.audit(HIDING, X, Y, threat=LINF, budget="quick")
    truth = left(PROBLEM, *PROBLEM.box())
    assert result.robust_accuracy == pytest.approx(truth, abs=0.051)  # one image of twenty


def test_hidden_scores_without_a_layer_inside_are_serious():
    levels = {s.name: s.level for s in probed(Inline().eval(), X, Y, LINF).findings}
    assert levels[SymptomName.HIDDEN_SCORES] is Level.SERIOUS


@pytest.mark.parametrize(
    ("rules", "net"), [({}, HIDING), ({SITE: sp.BPDA()}, PROBLEM.net())], ids=["no rule", "rule"]
)
def test_the_scores_inside_are_the_output_only_with_a_rule(rules, net):
    ctx = sp.Context(Keys.of(0, torch.arange(len(X))), rules)
    out = Instrumented(HIDING, (SITE,)).trace(X, ctx).last
    torch.testing.assert_close(out, net(X), rtol=0, atol=0)
