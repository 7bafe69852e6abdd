"""Image quilting: tiny quilts laid by hand, the cut against all paths, and who picks which patch."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from tests.zoo.adaptive.purifiers import gradient, images, smooth_net
from torch.testing import assert_close

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.target.check import check
from saddlepoint.defenses import Context
from saddlepoint.gradients import BPDA
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.further import Quilting, TransformationDefense
from saddlepoint.zoo.adaptive.further.quilting import _minimum_error_cut

EXACT = {"rtol": 0.0, "atol": 0.0}


def context(n, seed=0):
    return Context(Keys.of(seed, torch.arange(n)))


def all_patches(x, size):
    """Every patch of every image, [M, C, P, P]."""
    return x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


@pytest.mark.parametrize(("side", "size", "overlap"), [(8, 5, 2), (9, 4, 1), (7, 3, 0), (6, 6, 2)])
def test_of_its_own_patches_an_image_is_laid_as_it_was(side, size, overlap):
    x = Keys.of(3, torch.arange(3)).uniform((2, side, side), torch.float64)
    quilt = Quilting(all_patches(x, size), neighbors=1, overlap=overlap)
    assert_close(quilt(x, context(3)), x, **EXACT)
    assert not quilt.random


def test_a_quilt_of_two_patches_is_cut_where_they_differ_least():
    """One row of 3 x 5 pixels, patches of 3 x 3 that overlap in the middle column and one more: 0 1 | 2 | 3 4, laid at 0 and 2.

    The overlap is column 2 alone, which the cut gives to the new patch: a path of one column has nowhere else to go.
    """
    dark = torch.full((1, 3, 3), 0.1, dtype=torch.float64)
    light = torch.full((1, 3, 3), 0.9, dtype=torch.float64)
    x = torch.tensor([[0.0, 0.0, 0.4, 1.0, 1.0]], dtype=torch.float64).expand(3, 5)[None, None]
    laid = Quilting(torch.stack([dark, light]), neighbors=1, overlap=1)(x, context(1))
    assert_close(
        laid[0, 0],
        torch.tensor([[0.1, 0.1, 0.9, 0.9, 0.9]], dtype=torch.float64).expand(3, 5),
        **EXACT,
    )


def test_the_cut_keeps_the_old_left_of_it_and_goes_through_what_is_equal():
    """Patches of 3 x 3 at columns 0 and 1 of a 3 x 4 image: they overlap in columns 1 and 2.

    Old there: rows (5, 7), (5, 7), (5, 7); new: (5, 1), (2, 7), (5, 1). The errors are (0, 36), (9, 0), (0, 36), and the cheapest
    path down is 0, 1, 0, at no cost: in the second row alone the old pixel of column 1 stays.
    """
    old = torch.tensor([[3.0, 5, 7]] * 3, dtype=torch.float64)
    new = torch.tensor([[5.0, 1, 80], [2, 7, 80], [5, 1, 80]], dtype=torch.float64)
    x = torch.tensor([[3.0, 5, 7, 80]] * 3, dtype=torch.float64)[
        None, None
    ]  # by its last column nearer to the new patch
    laid = Quilting(torch.stack([old, new])[:, None], neighbors=1, overlap=2)(x, context(1))
    expected = torch.tensor([[3.0, 5, 1, 80], [3, 5, 7, 80], [3, 5, 1, 80]], dtype=torch.float64)
    assert_close(laid[0, 0], expected, **EXACT)
    on_its_side = Quilting(torch.stack([old.T, new.T])[:, None], neighbors=1, overlap=2)(
        x.mT, context(1)
    )
    assert_close(on_its_side[0, 0], expected.T, **EXACT)


def test_no_path_is_cheaper_than_the_cut():
    """All of the at most 4 x 3^4 paths of 5 rows and 4 columns are tried."""
    error = Keys.of(8, torch.arange(20)).uniform((5, 4), torch.float64)
    found = _minimum_error_cut(error)
    for e, cut in zip(error, found.tolist(), strict=True):
        paths = [
            p for p in product(range(4), repeat=5) if all(abs(a - b) <= 1 for a, b in pairwise(p))
        ]
        costs = {p: sum(float(e[i, j]) for i, j in enumerate(p)) for p in paths}
        assert costs[tuple(cut)] == pytest.approx(min(costs.values()), abs=1e-12)


def test_each_patch_is_one_of_the_nearest_by_a_coin_of_its_row():
    """Flat patches of six shades on a flat image, no overlap: every laid shade is among the three nearest, and all three occur."""
    shades = torch.tensor([0.0, 0.2, 0.45, 0.5, 0.6, 1.0], dtype=torch.float64)
    quilt = Quilting(shades.view(-1, 1, 1, 1).expand(-1, 1, 2, 2), neighbors=3, overlap=0)
    x = torch.full((4, 1, 8, 8), 0.5, dtype=torch.float64)
    laid = quilt(x, context(4))
    assert set(laid.unique().tolist()) == {0.45, 0.5, 0.6}
    assert len({tuple(row.flatten().tolist()) for row in laid}) == 4
    assert_close(quilt(x[2:3], Context(Keys.of(0, torch.tensor([2])))), laid[2:3], **EXACT)
    assert not torch.equal(quilt(x, context(4, seed=1)), laid)


def test_the_database_is_cut_out_of_the_images():
    x = Keys.of(3, torch.arange(4)).uniform((2, 6, 6), torch.float64)
    quilt = Quilting.from_images(x, count=300, size=5)
    every = {tuple(patch.flatten().tolist()) for patch in all_patches(x, 5)}
    cut = {tuple(patch.flatten().tolist()) for patch in quilt.patches}
    assert cut == every  # 300 draws of 16: one is missed with probability 16 (15 / 16)^300 < 1e-7
    one, same, other = (Quilting.from_images(x, count=10, seed=seed).patches for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_as_a_defense_it_is_random_answers_row_by_row_and_gives_a_gradient_around_it():
    net = smooth_net()
    x = images(6)
    y = torch.arange(6) % 4
    defense = TransformationDefense(
        net, Quilting.from_images(images(8, seed=4), count=40, size=3, neighbors=4, overlap=1)
    )
    assert [found.name for found in check(defense, x, y, Linf(0.1)).findings] == [
        "vanishing gradients"
    ]
    assert (defense.random, defense.unit) == (True, "example")
    assert (gradient(defense, x, y, rules={"purify": BPDA()}).flatten(1).abs().amax(1) > 1e-6).all()
    assert float(gradient(defense, x, y).abs().amax()) == 0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Quilting(torch.zeros(2, 1, 3, 4)), "square patches"),
        (lambda: Quilting(torch.zeros(2, 1, 3, 3)), "neighbors <= 2"),
        (lambda: Quilting(torch.zeros(20, 1, 3, 3), overlap=3), "overlap < 3"),
        (lambda: Quilting.from_images(torch.zeros(2, 1, 4, 4)), "5 x 5 are cut out"),
        (
            lambda: Quilting(torch.zeros(20, 1, 3, 3))(torch.zeros(1, 3, 8, 8), context(1)),
            "do not cover",
        ),
    ],
)
def test_what_cannot_be_laid_is_refused(build, says):
    with pytest.raises(ValueError, match=says):
        build()
