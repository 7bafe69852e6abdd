"""Escalation runs a second attack on exactly the rows that the first one almost broke."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Access
from saddlepoint.evaluation import AttackContext, Threat
from saddlepoint.evaluation.escalation import Escalate

THREAT = Threat(sp.Linf(1.0, box=(-10.0, 10.0)))
X = torch.tensor([[1.0], [2.0], [4.0], [0.5]], dtype=torch.float64)
Y = torch.zeros(4, dtype=torch.long)


class Lead(nn.Module):
    """The lead of class 0 is x itself."""

    def forward(self, x):
        return torch.cat([x, torch.zeros_like(x)], 1)


class Down:
    """Moves every row down by a fixed length, with one query."""

    needs: Access = "score"
    calls = 1

    def __init__(self, length):
        self.length = length

    def __call__(self, oracle, center, space, keys):
        x = center - self.length
        oracle.score(x)
        return AttackResult(x, x)


def run(within, first=0.75, then=1.0):
    adversary = Escalate(sp.Direct("first", Down(first)), sp.Direct("second", Down(then)), within)
    context = AttackContext.open(THREAT, torch.arange(4), seed=0)
    return adversary, context, adversary.move(context, sp.Plain(Lead()), X, Y)


def test_rows_are_attacked_again_if_their_lead_is_at_most_the_given_fraction():
    # Leads 1, 2, 4, 0.5 become 0.25, 1.25, 3.25, -0.25: fractions 0.25, 0.625, 0.81, and one row
    # that is misclassified already.
    for within, selected in ((0.2, []), (0.25, [0]), (0.7, [0, 1]), (0.9, [0, 1, 2])):
        _, _, found = run(within)
        moved = X - found.point
        assert moved.flatten().tolist() == [1.0 if row in selected else 0.75 for row in range(4)]


def test_a_second_attack_with_a_lower_loss_changes_nothing():
    _, _, found = run(0.9, then=0.5)
    torch.testing.assert_close(X - found.point, torch.full_like(X, 0.75), rtol=0, atol=0)


def test_only_selected_rows_have_the_cost_of_the_second_attack():
    adversary, context, _ = run(0.7)
    # One output of the clean row, one query, one output of its point; then another query and
    # another output.
    assert context.meter.forward.tolist() == [5, 5, 3, 3]
    assert adversary.cost() == (5, 0)


def test_a_row_has_the_same_result_alone_and_in_a_batch():
    adversary, _, together = run(0.7)
    for row in range(4):
        context = AttackContext.open(THREAT, torch.tensor([row]), seed=0)
        alone = adversary.move(context, sp.Plain(Lead()), X[row : row + 1], Y[:1])
        torch.testing.assert_close(alone.point, together.point[row : row + 1], rtol=0, atol=0)


def test_rows_that_another_attack_misclassifies_are_not_attacked_longer():
    # Row 0 has a lead of 1: a move by 1.5 misclassifies it, and the other attack is not proposed.
    first, second = (sp.Direct(name, Down(length)) for name, length in (("a", 0.75), ("b", 0.875)))
    adversary = Escalate(first, second, 0.7, unless=sp.Direct("other", Down(1.5)))
    context = AttackContext.open(THREAT, torch.arange(4), seed=0)
    found = adversary.move(context, sp.Plain(Lead()), X, Y)
    assert (X - found.point).flatten().tolist() == [0.75, 0.875, 0.75, 0.75]
    assert context.meter.forward.tolist() == [5, 7, 3, 3]
    assert adversary.cost() == (7, 0)
    plain = Escalate(first, second, 0.7)
    assert found.point[1] == plain.move(context, sp.Plain(Lead()), X, Y).point[1]


def test_escalations_nest():
    inner = Escalate(sp.Direct("second", Down(0.9)), sp.Direct("third", Down(1.0)), 0.3)
    adversary = Escalate(sp.Direct("first", Down(0.75)), inner, 0.7)
    found = adversary.move(
        AttackContext.open(THREAT, torch.arange(4), seed=0), sp.Plain(Lead()), X, Y
    )
    torch.testing.assert_close(
        (X - found.point).flatten(), torch.tensor([1.0, 0.9, 0.75, 0.75], dtype=torch.float64)
    )


def test_randomized_defenses_and_invalid_fractions_raise_errors():
    class Randomized(sp.Defense):
        random = True

        def trace(self, x, ctx):
            return sp.Trace((sp.View("only", Lead()(x)),))

    adversary, context, _ = run(0.7)
    with pytest.raises(ValueError, match="deterministic defense with independent rows"):
        adversary.move(context, Randomized(), X, Y)
    with pytest.raises(ValueError, match="in \\(0, 1\\]"):
        run(0.0)
