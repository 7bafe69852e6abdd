"""Image quilting: small examples, the cut compared with all paths, and the random choice."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from tests.probing import probe_target
from tests.zoo.adaptive.purifiers import gradient, images, smooth_net
from torch.testing import assert_close

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.verdict import SymptomName
from saddlepoint.defenses import Context
from saddlepoint.gradients import BPDA
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.further import Quilting, TransformationDefense
from saddlepoint.zoo.adaptive.further.quilting import _minimum_error_cut

EXACT = {"rtol": 0.0, "atol": 0.0}


def context(n, seed=0):
    return Context(Keys.of(seed, torch.arange(n)))


def all_patches(x, size):
    """Return every patch of every image, [M, C, P, P]."""
    return x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 2, 3, 1, 4, 5).flatten(0, 2)


@pytest.mark.parametrize(("side", "size", "overlap"), [(8, 5, 2), (9, 4, 1), (7, 3, 0), (6, 6, 2)])
def test_an_image_is_reproduced_from_its_own_patches(side, size, overlap):
    x = Keys.of(3, torch.arange(3)).uniform((2, side, side), torch.float64)
    quilt = Quilting(all_patches(x, size), neighbors=1, overlap=overlap)
    assert_close(quilt(x, context(3)), x, **EXACT)
    assert not quilt.random


def test_an_overlap_of_one_column_belongs_to_the_new_patch():
    """An image of 3 x 5 pixels and patches of 3 x 3 at columns 0 and 2.

    The overlap is column 2 alone, so the cut is this column, which belongs to the new patch.
    """
    dark = torch.full((1, 3, 3), 0.1, dtype=torch.float64)
    light = torch.full((1, 3, 3), 0.9, dtype=torch.float64)
    x = torch.tensor([[0.0, 0.0, 0.4, 1.0, 1.0]], dtype=torch.float64).expand(3, 5)[None, None]
    quilted = Quilting(torch.stack([dark, light]), neighbors=1, overlap=1)(x, context(1))
    assert_close(
        quilted[0, 0],
        torch.tensor([[0.1, 0.1, 0.9, 0.9, 0.9]], dtype=torch.float64).expand(3, 5),
        **EXACT,
    )


def test_old_pixels_left_of_the_cut_of_least_error_are_kept():
    """Patches of 3 x 3 at columns 0 and 1 of a 3 x 4 image, which overlap in columns 1 and 2.

    In the overlap the old rows are (5, 7), (5, 7), (5, 7) and the new ones (5, 1), (2, 7), (5, 1).
    The errors are (0, 36), (9, 0), (0, 36). The path 0, 1, 0 has no error: only in the second row
    the old pixel of column 1 is kept.
    """
    old = torch.tensor([[3.0, 5, 7]] * 3, dtype=torch.float64)
    new = torch.tensor([[5.0, 1, 80], [2, 7, 80], [5, 1, 80]], dtype=torch.float64)
    # The last column makes the right part of the image nearer to the new patch.
    x = torch.tensor([[3.0, 5, 7, 80]] * 3, dtype=torch.float64)[None, None]
    quilted = Quilting(torch.stack([old, new])[:, None], neighbors=1, overlap=2)(x, context(1))
    expected = torch.tensor([[3.0, 5, 1, 80], [3, 5, 7, 80], [3, 5, 1, 80]], dtype=torch.float64)
    assert_close(quilted[0, 0], expected, **EXACT)
    transposed = Quilting(torch.stack([old.T, new.T])[:, None], neighbors=1, overlap=2)
    assert_close(transposed(x.mT, context(1))[0, 0], expected.T, **EXACT)


def test_no_path_has_a_smaller_error_than_the_cut():
    """Compared with all paths through 5 rows and 4 columns, at most 4 x 3^4."""
    error = Keys.of(8, torch.arange(20)).uniform((5, 4), torch.float64)
    found = _minimum_error_cut(error)
    for e, cut in zip(error, found.tolist(), strict=True):
        paths = [
            p for p in product(range(4), repeat=5) if all(abs(a - b) <= 1 for a, b in pairwise(p))
        ]
        costs = {p: sum(float(e[i, j]) for i, j in enumerate(p)) for p in paths}
        assert costs[tuple(cut)] == pytest.approx(min(costs.values()), abs=1e-12)


def test_each_patch_is_drawn_per_example_from_the_nearest_ones():
    """Constant patches of six shades on a constant image: exactly the three nearest ones occur."""
    shades = torch.tensor([0.0, 0.2, 0.45, 0.5, 0.6, 1.0], dtype=torch.float64)
    quilt = Quilting(shades.view(-1, 1, 1, 1).expand(-1, 1, 2, 2), neighbors=3, overlap=0)
    x = torch.full((4, 1, 8, 8), 0.5, dtype=torch.float64)
    quilted = quilt(x, context(4))
    assert set(quilted.unique().tolist()) == {0.45, 0.5, 0.6}
    assert len({tuple(row.flatten().tolist()) for row in quilted}) == 4
    assert_close(quilt(x[2:3], Context(Keys.of(0, torch.tensor([2])))), quilted[2:3], **EXACT)
    assert not torch.equal(quilt(x, context(4, seed=1)), quilted)


def test_the_database_contains_the_patches_of_the_images():
    x = Keys.of(3, torch.arange(4)).uniform((2, 6, 6), torch.float64)
    quilt = Quilting.from_images(x, count=300, size=5)
    every = {tuple(patch.flatten().tolist()) for patch in all_patches(x, 5)}
    cut = {tuple(patch.flatten().tolist()) for patch in quilt.patches}
    # 300 draws from 16 patches miss one of them with probability 16 (15 / 16)^300 < 1e-7.
    assert cut == every
    one, same, other = (Quilting.from_images(x, count=10, seed=seed).patches for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_as_a_defense_quilting_is_random_and_uncoupled_and_only_bpda_has_a_gradient():
    net = smooth_net()
    x = images(6)
    y = torch.arange(6) % 4
    defense = TransformationDefense(
        net, Quilting.from_images(images(8, seed=4), count=40, size=3, neighbors=4, overlap=1)
    )
    found = {one.name for one in probe_target(defense, x, y, Linf(0.1)).findings}
    assert found - {SymptomName.UNUSUAL} == {"vanishing gradients"}  # few images may be at chance
    assert (defense.random, defense.unit) == (True, "example")
    assert (gradient(defense, x, y, rules={"purify": BPDA()}).flatten(1).abs().amax(1) > 1e-6).all()
    assert float(gradient(defense, x, y).abs().amax()) == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Quilting(torch.zeros(2, 1, 3, 4)), "square patches"),
        (lambda: Quilting(torch.zeros(2, 1, 3, 3)), "neighbors <= 2"),
        (lambda: Quilting(torch.zeros(20, 1, 3, 3), overlap=3), "overlap < 3"),
        (lambda: Quilting.from_images(torch.zeros(2, 1, 4, 4)), "patches of 5 x 5 need images"),
        (
            lambda: Quilting(torch.zeros(20, 1, 3, 3))(torch.zeros(1, 3, 8, 8), context(1)),
            "cannot cover",
        ),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
