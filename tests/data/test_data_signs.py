"""Balanced, equalized and divided: how traffic signs are made ready."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saddlepoint.data import Data, DataError
from saddlepoint.data.corruptions import plasma
from saddlepoint.data.signs import balanced, divided, equalized, prepared, warped
from saddlepoint.rng import Keys


def photographs(counts: dict[int, int], side: int = 16) -> Data:
    n = sum(counts.values())
    x = torch.stack([plasma(side, 2.0, Keys.of(k, torch.arange(n))) for k in range(3)], 1).float()
    y = torch.cat([torch.full((count,), label) for label, count in counts.items()])
    return Data("signs", x, y, tuple(f"sign {k}" for k in range(max(counts) + 1)))


DATA = photographs({0: 7, 1: 3, 2: 12, 3: 1})


def test_every_class_is_equally_large_and_all_originals_are_there() -> None:
    whole = balanced(DATA, 15)
    assert torch.bincount(whole.y).tolist() == [15] * 4
    for label in range(4):
        copies = whole.x[whole.y == label]
        originals = DATA.x[DATA.y == label]
        there = [(copies == original).flatten(1).all(1).sum().item() for original in originals]
        assert there == [1] * len(originals)
        assert (
            len({tuple(copy.flatten().tolist()) for copy in copies}) == 15
        )  # no warped copy twice


def test_classes_are_mixed_so_that_a_first_part_is_a_sample_of_all() -> None:
    assert set(balanced(DATA, 15).y[:16].tolist()) == {0, 1, 2, 3}


def test_balance_is_a_function_of_the_seed() -> None:
    assert (
        balanced(DATA, 15).digest()
        == balanced(DATA, 15).digest()
        != balanced(DATA, 15, seed=1).digest()
    )


def test_more_than_asked_for_cannot_be_balanced() -> None:
    with pytest.raises(DataError, match="class 2 has 12 examples, more than per_class=11"):
        balanced(DATA, 11)
    assert balanced(photographs({0: 4, 1: 4}), 4).digest() != ""  # no copies are needed


def test_a_share_of_every_class_is_set_aside() -> None:
    whole = balanced(DATA, 20)
    left, taken = divided(whole, 0.3)
    assert torch.bincount(left.y).tolist() == [14] * 4
    assert torch.bincount(taken.y).tolist() == [6] * 4
    rows = {tuple(x.flatten().tolist()) for x in whole.x}
    assert len(rows) == 80
    assert {tuple(x.flatten().tolist()) for x in left.x} | {
        tuple(x.flatten().tolist()) for x in taken.x
    } == rows
    with pytest.raises(DataError, match="between 0 and 1, got 1"):
        divided(whole, 1.0)


def test_the_counts_of_the_paper_hold_at_any_scale() -> None:
    parts = prepared(photographs({0: 7, 1: 3, 2: 12, 3: 5, 4: 4}), classes=4, per_class=100)
    for data, count in zip(parts, (63, 7, 30), strict=True):
        assert torch.bincount(data.y).tolist() == [count] * 4
        assert len(data.classes) == 4
    rows = [{tuple(x.flatten().tolist()) for x in data.x} for data in parts]
    assert not rows[0] & rows[2]
    assert not rows[0] & rows[1]
    with pytest.raises(DataError, match="asked for the first 10 of 5 classes"):
        prepared(photographs({0: 2, 4: 2}))


def test_nothing_moves_where_nothing_may() -> None:
    still = warped(DATA.x, Keys.of(0, torch.arange(len(DATA.x))), degrees=0, pixels=0, corner=0)
    torch.testing.assert_close(still, DATA.x, rtol=0, atol=1e-5)


def ramp(side: int = 31) -> tuple[Tensor, Tensor]:
    """Brightness that grows to the right, and downwards: where a point came from can be read off."""
    at = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    return at.expand(1, 1, side, side), at[:, None].expand(1, 1, side, side)


def test_shifts_and_angles_stay_within_bounds_and_fill_them() -> None:
    right, down = ramp()
    n = 400
    side = 31
    center = 15
    keys = Keys.of(0, torch.arange(n))

    def seen(at: int, **bounds: float) -> list[Tensor]:
        """[N] pixels right of and below the center from which the middle row shows what is at this column."""
        looks = (
            warped(axis.expand(n, 1, side, side), keys, corner=0, **bounds)
            for axis in (right, down)
        )
        return [(look[:, 0, center, at] - 0.5) * side for look in looks]

    moved = torch.stack(seen(center, degrees=0))
    assert float(moved.abs().max()) <= 2.5 + 1e-9
    assert float(moved.abs().max()) > 2.4
    assert (
        abs(float(moved.mean())) < 5 * 2.5 / (3 * 2 * n) ** 0.5
    )  # uniform: five standard deviations of the mean of 2 n
    # A rotation about the center: ten pixels to the right of it the view comes from an angle.
    across, along = seen(center + 10, pixels=0)
    torch.testing.assert_close(
        across**2 + along**2, torch.full_like(across, 100), rtol=0, atol=1e-6
    )
    angle = torch.rad2deg(torch.atan2(along, across))
    assert 14.5 < float(angle.abs().max()) <= 15 + 1e-9
    assert float(angle.min()) < -14.5


def test_seen_askew_straight_lines_stay_straight_and_corners_move_as_far_as_they_may() -> None:
    right, down = ramp()
    n = 300
    side = 31
    keys = Keys.of(0, torch.arange(n))
    u, v = (
        warped(axis.expand(n, 1, 31, 31), keys, degrees=0, pixels=0)[:, 0] * side
        for axis in (right, down)
    )
    # Well inside, three points of a row come from three points of a line: the area between them is none.
    points = [torch.stack([u[:, 15, k], v[:, 15, k]], 1) for k in (10, 15, 20)]
    (a, b), (c, d) = ((points[k] - points[0]).unbind(1) for k in (1, 2))
    assert float((a * d - b * c).abs().max()) < 1e-6
    assert float((u[:, 15, 15] - 15.5).abs().max()) > 1


def test_no_corner_moves_beyond_its_share() -> None:
    from saddlepoint.data.signs import _askew

    n = 500
    side = 32
    inwards = _askew(Keys.of(0, torch.arange(n)), 0.24, side, side)
    corners = torch.tensor(
        [[-16.0, -16, 1], [-16, 16, 1], [16, 16, 1], [16, -16, 1]], dtype=torch.float64
    )
    back = torch.linalg.solve(inwards, corners.T.expand(n, 3, 4)).transpose(
        1, 2
    )  # where the corners are seen
    moved = back[..., :2] / back[..., 2:] - corners[:, :2]
    assert float(moved.abs().max()) <= 0.24 * side + 1e-9
    assert float(moved.abs().max()) > 0.2 * side


def test_copies_depend_on_their_own_coins_alone() -> None:
    keys = Keys.of(0, torch.arange(len(DATA.x)))
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(
        warped(DATA.x[rows], keys[rows]), warped(DATA.x, keys)[rows], rtol=0, atol=1e-6
    )


def test_equalization_by_hand() -> None:
    # four pixels 52, 55, 61, 61 of 255: F - F(52) = 0, 1, 3 of 3
    x = torch.tensor([52.0, 55, 61, 61]).view(1, 1, 2, 2) / 255
    assert (equalized(x) * 255).round().flatten().tolist() == [0, 85, 255, 255]


def test_equalized_channels_have_flat_histograms_each_on_its_own() -> None:
    dark = DATA.x * torch.tensor([0.2, 0.5, 1.0])[:, None, None]
    flat = equalized(dark)
    assert flat.flatten(2).amin(2).eq(0).all()
    assert flat.flatten(2).amax(2).eq(1).all()
    # A uniform variable has mean 1/2; ties among 256 pixels in few shades of a dark channel shift it a little.
    assert float((flat.mean((2, 3)) - 0.5).abs().max()) < 0.05
    torch.testing.assert_close(equalized(flat), flat, rtol=0, atol=1e-6)  # a flat one stays


def test_one_color_stays_as_it_is() -> None:
    plain = torch.full((2, 3, 4, 4), 77 / 255)
    torch.testing.assert_close(equalized(plain), plain, rtol=0, atol=1e-7)


def test_equalization_is_that_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = (DATA.x[0] * 255).round().byte().numpy()
    for channel in range(3):
        want = torch.from_numpy(cv2.equalizeHist(pixels[channel])) / 255
        torch.testing.assert_close(equalized(DATA.x[:1])[0, channel], want, rtol=0, atol=1e-6)
