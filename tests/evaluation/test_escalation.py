"""A pursuit sends a second attack to the rows that the first one nearly broke, to all of them and to no others."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.planning.cost import price
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Access
from saddlepoint.evaluation import AttackContext, Threat

THREAT = Threat(sp.Linf(1.0, box=(-10.0, 10.0)))
X = torch.tensor([[1.0], [2.0], [4.0], [0.5]], dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)


class Lead(nn.Module):
    """The lead of class 0 is x itself."""

    def forward(self, x):
        return torch.cat([x, torch.zeros_like(x)], 1)


class Down:
    """Moves every row down by a fixed length, for one reading."""

    needs: Access = "score"
    calls = 1

    def __init__(self, length):
        self.length = length

    def __call__(self, oracle, center, space, keys):
        x = center - self.length
        oracle.score(x)
        return AttackResult(x, x)


def sent(within, first=0.75, then=1.0, then_name="second"):
    pursuit = sp.Escalate(sp.Direct("first", Down(first)), sp.Direct(then_name, Down(then)), within)
    context = AttackContext.open(THREAT, torch.arange(4), seed=0)
    return pursuit, context, pursuit.move(context, sp.Plain(Lead()), X, Y)


def test_rows_are_pursued_whose_lead_fell_to_the_share_asked_for():
    # Leads 1, 2, 4, 0.5 become 0.25, 1.25, 3.25, -0.25: shares 0.25, 0.625, 0.81, and one that has fallen already.
    for within, pursued in ((0.2, []), (0.25, [0]), (0.7, [0, 1]), (0.9, [0, 1, 2])):
        _, _, found = sent(within)
        moved = X - found.point
        assert moved.flatten().tolist() == [1.0 if row in pursued else 0.75 for row in range(4)]


def test_a_pursuit_that_loses_ground_changes_nothing():
    _, _, found = sent(0.9, then=0.5)
    torch.testing.assert_close(X - found.point, torch.full_like(X, 0.75), rtol=0, atol=0)


def test_rows_pay_for_the_second_attack_only_if_they_are_pursued_and_never_more_than_the_price():
    pursuit, context, _ = sent(0.7)
    # One answer on the clean row, one reading, one answer on its point; then another reading and another answer.
    assert context.meter.forward.tolist() == [5, 5, 3, 3]
    assert price(pursuit) == (5, 0)


def test_a_row_is_pursued_alone_as_it_is_among_others():
    pursuit, _, together = sent(0.7)
    for row in range(4):
        context = AttackContext.open(THREAT, torch.tensor([row]), seed=0)
        alone = pursuit.move(context, sp.Plain(Lead()), X[row : row + 1], Y[:1])
        torch.testing.assert_close(alone.point, together.point[row : row + 1], rtol=0, atol=0)


def test_pursuits_nest():
    inner = sp.Escalate(sp.Direct("second", Down(0.9)), sp.Direct("third", Down(1.0)), 0.3)
    pursuit = sp.Escalate(sp.Direct("first", Down(0.75)), inner, 0.7)
    found = pursuit.move(
        AttackContext.open(THREAT, torch.arange(4), seed=0), sp.Plain(Lead()), X, Y
    )
    torch.testing.assert_close(
        (X - found.point).flatten(), torch.tensor([1.0, 0.9, 0.75, 0.75], dtype=torch.float64)
    )


def test_rows_that_answer_together_or_by_chance_cannot_be_told_apart():
    class Chance(sp.Defense):
        random = True

        def trace(self, x, ctx):
            return sp.Trace((sp.View("only", Lead()(x)),))

    pursuit, context, _ = sent(0.7)
    with pytest.raises(ValueError, match="deterministic defense with independent rows"):
        pursuit.move(context, Chance(), X, Y)
    with pytest.raises(ValueError, match="in \\(0, 1\\]"):
        sent(0.0)
