"""A climb from where a search ended: it begins there, it goes on only where the search took nothing, and it loses nothing."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.planning.cost import affordable, price
from saddlepoint.audits.planning.properties import Sent
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Access, Defense, Trace, View
from saddlepoint.evaluation import AttackContext, Threat

THREAT = Threat(sp.Linf(1.0, box=(-10.0, 10.0)))


class Hill(nn.Module):
    """The lead of class 0: 1 on a plateau, and a slope down to -0.3 from x = 0.5 on."""

    def forward(self, x):
        lead = 1.0 - (x - 0.5).clamp(min=0.0) * 2.6
        return torch.cat([lead, torch.zeros_like(lead)], 1)


class Jump:
    """Moves every row to a point of its own, for one reading."""

    needs: Access = "score"
    calls = 1

    def __init__(self, *to):
        self.to = torch.tensor(to, dtype=torch.float64)[:, None]

    def __call__(self, oracle, center, space, keys):
        oracle.score(self.to)
        return AttackResult(self.to, self.to)


CLIMB = sp.Direct("climb", sp.PGD(4, 0.16))
X = torch.zeros(3, 1, dtype=torch.float64)
Y = torch.zeros(3, dtype=torch.long)


def test_the_climb_begins_where_the_search_ended_and_only_where_it_took_nothing():
    onward = sp.WarmStart(sp.Direct("search", Jump(0.6, 0.95, 0.2)), CLIMB)
    context = AttackContext.open(THREAT, torch.arange(3), seed=0)
    found = onward.move(context, sp.Plain(Hill()), X, Y)
    # From 0.6 steps of 0.16, 0.12, 0.08 and 0.04 lead to a mistake at 1; 0.95 is one already; from 0.2 no slope leads on.
    torch.testing.assert_close(
        found.point.flatten(), torch.tensor([1.0, 0.95, 0.2], dtype=torch.float64)
    )
    # One reading and one look for each; then four slopes and a reading where the row still stood.
    assert context.meter.forward.tolist() == [7, 2, 7]
    assert context.meter.backward.tolist() == [4, 0, 4]
    assert tuple(price(onward)) == (7, 4)


def test_queries_must_pay_for_the_climb_too_while_a_search_alone_stops_where_they_end():
    search = sp.Direct("square", sp.Square(10))
    onward = sp.WarmStart(search, CLIMB)  # ten queries, a look, four slopes and a reading
    assert affordable(search, 1, 5)
    assert affordable(onward, 1, 16)
    assert not affordable(onward, 1, 15)
    assert not affordable(sp.Restarts(search, 3), 1, 35)  # each start with two looks
    assert affordable(sp.Restarts(search, 3), 1, 36)


def test_from_the_image_itself_the_same_climb_finds_no_slope():
    context = AttackContext.open(THREAT, torch.arange(3), seed=0)
    still = sp.Direct("climb", sp.PGD(4, 0.1, random_start=False))
    found = still.move(context, sp.Plain(Hill()), X, Y)
    assert bool((found.point == X).all())


def test_what_it_takes_speaks_neither_for_gradients_nor_against_them():
    sent = Sent.of(1, sp.WarmStart(sp.Direct("square", sp.Square(10)), CLIMB))
    assert (sent.mixed, sent.white_box, sent.black_box) == (True, False, False)
    assert sent.adversary.needs == "gradient"
    assert Sent.of(1, CLIMB).white_box
    assert Sent.of(1, sp.Direct("square", sp.Square(10))).black_box


class Tossing(Defense):
    random = True

    def trace(self, x, ctx):
        return Trace((View("final", torch.cat([x, ctx.randn_like(x)], 1)),))


def test_a_random_defense_and_a_climb_that_cannot_start_anywhere_are_refused():
    onward = sp.WarmStart(sp.Direct("search", Jump(0.6, 0.6, 0.6)), CLIMB)
    with pytest.raises(ValueError, match="deterministic defense with independent rows"):
        onward.move(AttackContext.open(THREAT, torch.arange(3), seed=0), Tossing(), X, Y)
    with pytest.raises(ValueError, match=r"climbs by PGD.*got APGD"):
        sp.WarmStart(sp.Direct("square", sp.Square(10)), sp.Direct("climb", sp.APGD(4)))
