"""Preparation of traffic signs: balancing, splitting, warping, histogram equalization."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from saddlepoint.data import Data, DataError
from saddlepoint.data.corruptions import plasma
from saddlepoint.data.signs import (
    _perspective,
    balance_classes,
    equalize_histograms,
    hold_out,
    prepared,
    random_warp,
)
from saddlepoint.rng import Keys


def photographs(counts: dict[int, int], side: int = 16) -> Data:
    """Fractal images; `counts` maps each label to its number of images."""
    n = sum(counts.values())
    x = torch.stack([plasma(side, 2.0, Keys.of(k, torch.arange(n))) for k in range(3)], 1).float()
    y = torch.cat([torch.full((count,), label) for label, count in counts.items()])
    return Data("signs", x, y, tuple(f"sign {k}" for k in range(max(counts) + 1)))


DATA = photographs({0: 7, 1: 3, 2: 12, 3: 1})


def pixel_tuples(x: Tensor) -> set[tuple[float, ...]]:
    """The distinct images."""
    return {tuple(image.flatten().tolist()) for image in x}


def test_balanced_classes_have_equal_size_and_contain_every_original_once() -> None:
    whole = balance_classes(DATA, 15)
    assert torch.bincount(whole.y).tolist() == [15] * 4
    for label in range(4):
        copies = whole.x[whole.y == label]
        originals = DATA.x[DATA.y == label]
        there = [(copies == original).flatten(1).all(1).sum().item() for original in originals]
        assert there == [1] * len(originals)
        assert len(pixel_tuples(copies)) == 15  # no warped copy occurs twice


def test_classes_are_shuffled_so_that_the_first_examples_contain_all_of_them() -> None:
    assert set(balance_classes(DATA, 15).y[:16].tolist()) == {0, 1, 2, 3}


def test_balancing_is_a_function_of_the_seed() -> None:
    digest = balance_classes(DATA, 15).digest()
    assert balance_classes(DATA, 15).digest() == digest
    assert balance_classes(DATA, 15, seed=1).digest() != digest


def test_a_class_larger_than_per_class_is_rejected() -> None:
    with pytest.raises(DataError, match="class 2 has 12 examples, more than per_class=11"):
        balance_classes(DATA, 11)
    assert balance_classes(photographs({0: 4, 1: 4}), 4).digest() != ""  # no copies are needed


def test_the_same_fraction_of_every_class_is_held_out() -> None:
    whole = balance_classes(DATA, 20)
    remaining, held_out = hold_out(whole, 0.3)
    assert torch.bincount(remaining.y).tolist() == [14] * 4
    assert torch.bincount(held_out.y).tolist() == [6] * 4
    images = pixel_tuples(whole.x)
    assert len(images) == 80
    assert pixel_tuples(remaining.x) | pixel_tuples(held_out.x) == images
    with pytest.raises(DataError, match="between 0 and 1, got 1"):
        hold_out(whole, 1.0)


def test_the_split_has_the_proportions_of_the_paper() -> None:
    parts = prepared(photographs({0: 7, 1: 3, 2: 12, 3: 5, 4: 4}), classes=4, per_class=100)
    for data, count in zip(parts, (63, 7, 30), strict=True):
        assert torch.bincount(data.y).tolist() == [count] * 4
        assert len(data.classes) == 4
    images = [pixel_tuples(data.x) for data in parts]
    assert not images[0] & images[2]
    assert not images[0] & images[1]
    with pytest.raises(DataError, match=r"classes must be between 2 and 5, .* got 10"):
        prepared(photographs({0: 2, 4: 2}))


def test_a_warp_with_all_bounds_at_zero_is_the_identity() -> None:
    keys = Keys.of(0, torch.arange(len(DATA.x)))
    unchanged = random_warp(DATA.x, keys, degrees=0, pixels=0, corner=0)
    torch.testing.assert_close(unchanged, DATA.x, rtol=0, atol=1e-5)


def ramps(side: int = 31) -> tuple[Tensor, Tensor]:
    """Images that increase to the right and downwards: their values encode pixel positions."""
    position = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    right = position.expand(1, 1, side, side)
    down = position[:, None].expand(1, 1, side, side)
    return right, down


def test_shifts_and_angles_are_within_their_bounds_and_reach_them() -> None:
    right, down = ramps()
    n = 400
    side = 31
    center = 15
    keys = Keys.of(0, torch.arange(n))

    def source(column: int, **bounds: float) -> list[Tensor]:
        """[N] each: source position of a pixel of the middle row, right of and below the center."""
        warped = (
            random_warp(axis.expand(n, 1, side, side), keys, corner=0, **bounds)
            for axis in (right, down)
        )
        return [(image[:, 0, center, column] - 0.5) * side for image in warped]

    shift = torch.stack(source(center, degrees=0))
    assert float(shift.abs().max()) <= 2.5 + 1e-9
    assert float(shift.abs().max()) > 2.4
    # Five standard deviations of the mean of 2 n uniform numbers.
    assert abs(float(shift.mean())) < 5 * 2.5 / (3 * 2 * n) ** 0.5
    # A rotation about the center keeps the distance of a pixel ten columns to the right of it.
    horizontal, vertical = source(center + 10, pixels=0)
    torch.testing.assert_close(
        horizontal**2 + vertical**2, torch.full_like(horizontal, 100), rtol=0, atol=1e-6
    )
    angle = torch.rad2deg(torch.atan2(vertical, horizontal))
    assert 14.5 < float(angle.abs().max()) <= 15 + 1e-9
    assert float(angle.min()) < -14.5


def test_the_perspective_distortion_keeps_lines_straight_and_moves_the_center() -> None:
    right, down = ramps()
    n = 300
    side = 31
    keys = Keys.of(0, torch.arange(n))
    u, v = (
        random_warp(axis.expand(n, 1, 31, 31), keys, degrees=0, pixels=0)[:, 0] * side
        for axis in (right, down)
    )
    # Three points of a row well inside the image come from three points of a line: the area of
    # their triangle is zero.
    points = [torch.stack([u[:, 15, k], v[:, 15, k]], 1) for k in (10, 15, 20)]
    a, b = (points[1] - points[0]).unbind(1)
    c, d = (points[2] - points[0]).unbind(1)
    assert float((a * d - b * c).abs().max()) < 1e-6
    assert float((u[:, 15, 15] - 15.5).abs().max()) > 1


def test_no_corner_moves_beyond_its_bound() -> None:
    n = 500
    side = 32
    to_source = _perspective(Keys.of(0, torch.arange(n)), 0.24, side, side)
    corners = torch.tensor(
        [[-16.0, -16, 1], [-16, 16, 1], [16, 16, 1], [16, -16, 1]], dtype=torch.float64
    )
    # The positions that the map takes to the image corners.
    back = torch.linalg.solve(to_source, corners.T.expand(n, 3, 4)).transpose(1, 2)
    displacement = back[..., :2] / back[..., 2:] - corners[:, :2]
    assert float(displacement.abs().max()) <= 0.24 * side + 1e-9
    assert float(displacement.abs().max()) > 0.2 * side


def test_warped_copies_depend_only_on_their_own_keys() -> None:
    keys = Keys.of(0, torch.arange(len(DATA.x)))
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(
        random_warp(DATA.x[rows], keys[rows]), random_warp(DATA.x, keys)[rows], rtol=0, atol=1e-6
    )


def test_equalization_of_four_pixels_is_as_computed_by_hand() -> None:
    # Four pixels 52, 55, 61, 61 of 255: F - F(52) = 0, 1, 3 of 3.
    x = torch.tensor([52.0, 55, 61, 61]).view(1, 1, 2, 2) / 255
    assert (equalize_histograms(x) * 255).round().flatten().tolist() == [0, 85, 255, 255]


def test_each_channel_is_equalized_separately() -> None:
    dark = DATA.x * torch.tensor([0.2, 0.5, 1.0])[:, None, None]
    flat = equalize_histograms(dark)
    assert flat.flatten(2).amin(2).eq(0).all()
    assert flat.flatten(2).amax(2).eq(1).all()
    # A uniform variable has mean 1/2. Ties among the 256 pixels of a dark channel with few values
    # shift it a little.
    assert float((flat.mean((2, 3)) - 0.5).abs().max()) < 0.05
    # An equalized image is unchanged by a second equalization.
    torch.testing.assert_close(equalize_histograms(flat), flat, rtol=0, atol=1e-6)


def test_a_channel_of_one_value_is_unchanged() -> None:
    plain = torch.full((2, 3, 4, 4), 77 / 255)
    torch.testing.assert_close(equalize_histograms(plain), plain, rtol=0, atol=1e-7)


def test_equalization_agrees_with_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = (DATA.x[0] * 255).round().byte().numpy()
    equalized = equalize_histograms(DATA.x[:1])[0]
    for channel in range(3):
        want = torch.from_numpy(cv2.equalizeHist(pixels[channel])) / 255
        torch.testing.assert_close(equalized[channel], want, rtol=0, atol=1e-6)
