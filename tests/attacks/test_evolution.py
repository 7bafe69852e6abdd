"""Evolutionary search from given points: exact on a small problem, and honest about its cost."""

from __future__ import annotations

import pytest
import torch
from tests.problems import uniform
from torch import nn

from saddlepoint.attacks.evolution import Evolution
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import AttackContext, Direct, Evolved, Threat

N = 24
D = 16
RADIUS = 0.1
X = 0.3 + 0.4 * uniform(0, N, D)
SIGNS = torch.where(uniform(1, D) > 0.5, 1.0, -1.0).to(X)
Y = torch.zeros(N, dtype=torch.long)


class Steps(nn.Module):
    """Counts the pixels that moved far enough in a secret direction: flat almost everywhere.

    Class 1 wins if at least `needed` of the 16 pixels did. The count has no gradient. With
    `together` > 1, so many neighbors count as one, if all of them moved.
    """

    def __init__(self, needed: int, together: int = 1) -> None:
        super().__init__()
        self.needed = needed
        self.together = together
        self.eval()

    def forward(self, x):
        x0 = X[self.rows(x)]
        moved = (x - x0) * SIGNS > 0.9 * RADIUS
        far = moved.unflatten(1, (-1, self.together)).all(2).sum(1).to(x.dtype)
        return torch.stack([torch.zeros_like(far), far - self.needed + 0.5], 1)

    def rows(self, x):
        return torch.cdist(x.double(), X.double()).argmin(1)


def members(space, count):
    keys = AttackContext.open(Threat(space), torch.arange(N), 0).attacker_keys()
    return torch.stack([space.sample(X, keys.fold_in(k)) for k in range(count)], 1)


def run(attack, needed, space=None, together=1):
    space = space or Linf(RADIUS)
    context = AttackContext.open(Threat(space), torch.arange(N), 0)
    net = Steps(needed, together)
    result = Direct("evolution", attack, loss=margin).move(context, Plain(net), X, Y)
    assert space.contains(result.point, X).all()
    return net(result.point).argmax(1) == 1, context


def test_all_pixels_are_found_though_no_gradient_shows_them():
    """Random points have about one pixel in twenty far enough; 16 of 16 are needed."""
    wrong, context = run(Evolution(members(Linf(RADIUS), 8), 1500), D)
    assert wrong.float().mean() > 0.9
    assert (context.meter.forward <= 1500).all()
    assert (context.meter.backward == 0).all()


def test_plateaus_are_crossed():
    """Two pixels together are one step, so that one of them changes nothing.

    If only higher values replaced a member, 1 of 24 rows would be broken instead of 13.
    """
    wrong, _ = run(Evolution(members(Linf(RADIUS), 4), 2000), D // 2, together=2)
    assert wrong.float().mean() > 0.4


def test_broken_rows_are_not_queried_again():
    wrong, context = run(Evolution(members(Linf(RADIUS), 4), 500), 6)
    assert wrong.all()
    assert (context.meter.forward < 500).all()
    assert len(context.meter.forward.unique()) > 1


def test_points_stay_in_an_l2_ball():
    run(Evolution(members(L2(0.3), 4), 50), D, L2(0.3))


@pytest.mark.parametrize(
    ("population", "queries", "words"),
    [
        (torch.zeros(3, 1, 4), 10, "at least two members"),
        (torch.zeros(3), 10, "at least two members"),
        (torch.zeros(3, 5, 4), 5, "a child at least one more"),
    ],
)
def test_a_population_needs_two_members_and_queries_for_children(population, queries, words):
    with pytest.raises(ValueError, match=words):
        Evolution(population, queries)


def test_an_adversary_searches_on_where_gradient_attacks_ended():
    """PGD alone moves at random here. Its properties are those of a search with queries."""
    adversary = Evolved("evolution", (Direct("pgd", PGD(2)),) * 8, 1500)
    assert adversary.properties.black_box
    assert not adversary.properties.white_box
    context = AttackContext.open(Threat(Linf(RADIUS)), torch.arange(N), 0)
    result = adversary.move(context, Plain(Differentiable(D)), X, Y)
    wrong = Steps(D)(result.point).argmax(1) == 1
    assert wrong.float().mean() > 0.9
    cost = adversary.cost()
    assert (context.meter.forward <= cost.forward).all()
    assert (context.meter.backward <= cost.backward).all()


class Differentiable(Steps):
    """The same with a gradient that is zero."""

    def forward(self, x):
        return super().forward(x) + 0 * x.sum(1, keepdim=True)
