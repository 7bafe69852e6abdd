"""Counting of forward and backward passes."""

from __future__ import annotations

import torch

import saddlepoint as sp
from saddlepoint.evaluation import play
from saddlepoint.passes import PassCount, count_passes


def linear():
    torch.manual_seed(0)
    return sp.Plain(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)))


def test_passes_are_those_of_the_attack_and_of_the_referee():
    x = torch.rand(5, 1, 4, 4)
    y = torch.zeros(5, dtype=torch.long)
    adversary = sp.Direct("pgd", sp.PGD(4))
    with count_passes() as counter:
        episode = play(linear(), adversary, x, y, sp.Threat(sp.Linf(0.1)))
    # 4 gradients and one evaluation per image by the attack, one evaluation by the referee.
    assert counter.total == PassCount(forward=5 * (4 + 1 + 1), backward=5 * 4)
    assert counter.total.forward == int(episode.forward.sum()) + 5
    assert counter.total.backward == int(episode.backward.sum())


def test_passes_count_in_every_enclosing_block_and_in_no_other():
    defense = linear()
    x = torch.rand(3, 1, 4, 4)
    with count_passes() as outer:
        defense.respond(x, sp.Context.seeded(0, 3))
        with count_passes() as inner:
            defense.respond(x, sp.Context.seeded(0, 3))
    defense.respond(x, sp.Context.seeded(0, 3))
    assert inner.total.forward == 3
    assert outer.total.forward == 6
