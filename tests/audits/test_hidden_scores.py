"""Answers that do not tell which class comes second leave every loss in the dark; scores inside the net do tell."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.target.check import check
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.target.instrument import Instrumented
from saddlepoint.rng import Keys
from saddlepoint.selftests.problem import four_classes, left

PROBLEM = four_classes(20)
X = PROBLEM.x
Y = PROBLEM.y
LINF = sp.Linf(PROBLEM.radius)


def first_alone(z):
    """The highest score, above the lowest, and zeros."""
    highest, at = (z - z.amin(1, keepdim=True)).max(1, keepdim=True)
    return torch.zeros_like(z).scatter(1, at, highest)


class FirstAlone(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return first_alone(self.net(x))


class Inline(nn.Module):
    """The same without a layer inside."""

    def forward(self, x):
        return first_alone(x.flatten(1) @ PROBLEM.weight.T + PROBLEM.bias)


def test_scores_inside_are_attacked_where_answers_hide_the_second_class():
    found = sp.probe(FirstAlone(PROBLEM.net()).eval(), X, Y, threat=LINF)["hidden scores"]
    assert found.present
    assert found.places == ("scores of net",)
    assert not sp.probe(PROBLEM.net(), X, Y, threat=LINF)["hidden scores"].present
    result = sp.audit(FirstAlone(PROBLEM.net()).eval(), X, Y, threat=LINF, budget="quick")
    assert result.robust_accuracy == pytest.approx(
        left(PROBLEM, *PROBLEM.box()), abs=0.051
    )  # one image of twenty


def test_without_scores_inside_a_number_cannot_be_told():
    findings = {
        symptom.name: symptom.level for symptom in check(Inline().eval(), X, Y, LINF).findings
    }
    assert findings["hidden scores"] == "serious"


def test_scores_inside_are_answered_only_where_an_attacker_asks_for_them():
    net, site = FirstAlone(PROBLEM.net()).eval(), "scores of net"
    for rules, answer in (({}, net(X)), ({site: sp.BPDA()}, PROBLEM.net()(X))):
        out = (
            Instrumented(net, (site,))
            .trace(X, sp.Context(Keys.of(0, torch.arange(len(X))), rules))
            .last
        )
        torch.testing.assert_close(out, answer, rtol=0, atol=0)
