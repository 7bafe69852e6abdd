"""Gradient ascent from the end of a query search: on which rows, from where, and at what cost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.best import AttackResult
from saddlepoint.audits.planning.suite import affordable
from saddlepoint.defenses import Access, Defense, Trace, View
from saddlepoint.evaluation import AttackContext, Threat
from saddlepoint.evaluation.warm_start import WarmStart

THREAT = Threat(sp.Linf(1.0, box=(-10.0, 10.0)))


class Plateau(nn.Module):
    """The lead of class 0: 1 up to x = 0.5, then decreasing to -0.3."""

    def forward(self, x):
        lead = 1.0 - (x - 0.5).clamp(min=0.0) * 2.6
        return torch.cat([lead, torch.zeros_like(lead)], 1)


class Jump:
    """Moves every row to a given point, with one query."""

    needs: Access = "score"
    calls = 1

    def __init__(self, *to):
        self.to = torch.tensor(to, dtype=torch.float64)[:, None]

    def __call__(self, oracle, center, space, keys):
        oracle.score(self.to)
        return AttackResult(self.to, self.to)


ASCENT = sp.Direct("ascent", sp.PGD(4, 0.16))
X = torch.zeros(3, 1, dtype=torch.float64)
Y = torch.zeros(3, dtype=torch.long)


def test_ascent_starts_at_the_end_of_the_search_on_rows_that_the_search_did_not_break():
    adversary = WarmStart(sp.Direct("search", Jump(0.6, 0.95, 0.2)), ASCENT)
    context = AttackContext.open(THREAT, torch.arange(3), seed=0)
    found = adversary.move(context, sp.Plain(Plateau()), X, Y)
    # From 0.6, steps of 0.16, 0.12, 0.08 and 0.04 reach a misclassified point at 1. The point 0.95
    # is misclassified already. At 0.2 the gradient is zero.
    torch.testing.assert_close(
        found.point.flatten(), torch.tensor([1.0, 0.95, 0.2], dtype=torch.float64)
    )
    # One query and one output per row; then four gradients and one evaluation of unbroken rows.
    assert context.meter.forward.tolist() == [7, 2, 7]
    assert context.meter.backward.tolist() == [4, 0, 4]
    assert adversary.cost() == (7, 4)


def test_the_query_budget_must_cover_the_ascent_while_a_search_stops_by_itself():
    search = sp.Direct("square", sp.Square(10))
    # Ten queries, one output, four gradients and one evaluation.
    adversary = WarmStart(search, ASCENT)
    assert affordable(search, 1, 5)
    assert affordable(adversary, 1, 16)
    assert not affordable(adversary, 1, 15)
    assert not affordable(sp.Restarts(search, 3), 1, 35)  # two outputs per restart
    assert affordable(sp.Restarts(search, 3), 1, 36)


def test_ascent_from_the_clean_image_has_zero_gradients():
    context = AttackContext.open(THREAT, torch.arange(3), seed=0)
    still = sp.Direct("ascent", sp.PGD(4, 0.1, random_start=False))
    found = still.move(context, sp.Plain(Plateau()), X, Y)
    assert bool((found.point == X).all())


def test_it_counts_neither_as_white_box_nor_as_black_box():
    properties = WarmStart(sp.Direct("square", sp.Square(10)), ASCENT).properties
    assert properties.continues_search
    assert (properties.white_box, properties.black_box) == (False, False)
    assert properties.needs == "gradient"
    assert ASCENT.properties.white_box
    assert sp.Direct("square", sp.Square(10)).properties.black_box


class Randomized(Defense):
    random = True

    def trace(self, x, ctx):
        return Trace((View("final", torch.cat([x, ctx.randn_like(x)], 1)),))


def test_randomized_defenses_and_attacks_without_a_start_point_raise_errors():
    adversary = WarmStart(sp.Direct("search", Jump(0.6, 0.6, 0.6)), ASCENT)
    with pytest.raises(ValueError, match="deterministic defense with independent rows"):
        adversary.move(AttackContext.open(THREAT, torch.arange(3), seed=0), Randomized(), X, Y)
    with pytest.raises(ValueError, match=r"continues with PGD.*got APGD"):
        WarmStart(sp.Direct("square", sp.Square(10)), sp.Direct("ascent", sp.APGD(4)))
