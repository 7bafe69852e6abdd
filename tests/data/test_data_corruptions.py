"""Common corruptions: pure functions of image, severity and coins, worse with every severity."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from saddlepoint.data.corruptions import (
    CORRUPTIONS,
    Corruption,
    brightness,
    contrast,
    defocus_blur,
    fog,
    gaussian_blur,
    gaussian_noise,
    impulse_noise,
    motion_blur,
    pixelate,
    plasma,
    shot_noise,
    speckle_noise,
    zoom_blur,
)
from saddlepoint.rng import Keys

N = 12
RANDOMNESS = Keys.of(0, torch.arange(N))


def landscapes() -> Tensor:
    """Images of 32x32 with detail at every scale, three channels alike but not equal."""
    land = torch.stack([plasma(32, 1.3, Keys.of(k, torch.arange(N))) for k in (10, 11, 12)], 1)
    return ((land + land[:, :1]) / 2 * 255).round().div(255).float()


X = landscapes()
each = pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS)


@each
def test_every_severity_is_worse_than_the_one_before(corruption: Corruption) -> None:
    lost = [
        float((corruption(X, severity, RANDOMNESS) - X).square().mean()) for severity in range(1, 6)
    ]
    assert lost[0] > 0
    rises = [later - earlier for earlier, later in pairwise(lost)]
    if corruption is motion_blur:  # 3 and 4 differ beyond six standard deviations of a Gaussian
        assert abs(rises.pop(2)) < 1e-6
    assert all(rise > 0 for rise in rises)


@each
def test_the_same_coins_give_the_same_bytes_and_the_image_given_stays(
    corruption: Corruption,
) -> None:
    given = X.clone()
    once = corruption(X, 3, RANDOMNESS)
    again = corruption(X, 3, RANDOMNESS)
    assert torch.equal(once, again)
    assert torch.equal(X, given)
    assert once.shape == X.shape
    assert once.dtype == X.dtype
    torch.testing.assert_close(once * 255, (once * 255).round(), rtol=0, atol=1e-4)
    assert 0 <= float(once.min()) <= float(once.max()) <= 1


@each
def test_an_image_does_not_depend_on_its_neighbors(corruption: Corruption) -> None:
    rows = torch.tensor([7, 2])
    torch.testing.assert_close(
        corruption(X[rows], 4, RANDOMNESS[rows]),
        corruption(X, 4, RANDOMNESS)[rows],
        rtol=0,
        atol=1 / 255 + 1e-6,
    )


@each
def test_gray_images_of_another_size_are_served_too(corruption: Corruption) -> None:
    assert corruption(X[:, :1, :8, :12], 5, RANDOMNESS).shape == (N, 1, 8, 12)


@each
def test_a_severity_that_there_is_not_is_refused(corruption: Corruption) -> None:
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severities are 1 to 5, got {severity}"):
            corruption(X, severity, RANDOMNESS)


def test_which_corruptions_toss_coins() -> None:
    other = Keys.of(1, torch.arange(N))
    tossing = {
        name
        for name, corruption in CORRUPTIONS.items()
        if not torch.equal(corruption(X, 3, RANDOMNESS), corruption(X, 3, other))
    }
    assert tossing == {
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "speckle_noise",
        "motion_blur",
        "fog",
    }


def test_brightness_raises_the_value_of_hsv_and_keeps_hue_and_saturation() -> None:
    import colorsys

    x = torch.rand(1, 3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for severity, raised in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), start=1):
        got = brightness(x, severity, RANDOMNESS[:1])
        for i in range(5):
            for j in range(7):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                want = torch.tensor(
                    colorsys.hsv_to_rgb(h, s, min(v + raised, 1)), dtype=torch.float64
                )
                torch.testing.assert_close(
                    got[0, :, i, j], want, rtol=0, atol=0.5 / 255 + 1e-12
                )  # a byte, rounded
    black = torch.zeros(1, 3, 1, 1)
    torch.testing.assert_close(
        brightness(black, 1, RANDOMNESS[:1]), torch.full_like(black, 13 / 255), rtol=0, atol=1e-6
    )


def test_noise_has_the_spread_it_says() -> None:
    gray = torch.full((8, 3, 64, 64), 128 / 255)
    keys = Keys.of(3, torch.arange(8))
    sample = 8 * 3 * 64 * 64
    for severity, spread in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        # the standard deviation of a standard deviation is s / sqrt(2 n): five of them, and a byte's rounding
        got = float((gaussian_noise(gray, severity, keys) - gray).std())
        assert abs(got - spread) < 5 * spread / math.sqrt(2 * sample) + 2e-4
    for severity, spread in enumerate((0.06, 0.1, 0.12, 0.16, 0.2), start=1):
        got = float((speckle_noise(gray, severity, keys) - gray).std())
        assert abs(got - spread * 128 / 255) < 5 * spread / math.sqrt(2 * sample) + 2e-4
    for severity, photons in enumerate((500, 250, 100, 75, 50), start=1):
        noisy = shot_noise(gray, severity, keys)
        assert (
            abs(float(noisy.mean()) - 128 / 255) < 5 * math.sqrt(0.5 / photons / sample) + 2e-4
        )  # Poisson: mean = variance
        assert float((noisy - gray).std()) == pytest.approx(
            math.sqrt(128 / 255 / photons), rel=0.02
        )


def test_shot_noise_is_poisson() -> None:
    from scipy.stats import poisson

    drawn = RANDOMNESS.uniform((3, 32, 32), torch.float64).numpy()
    expected = poisson.ppf(drawn, 50 * (X.double() * 255).round().numpy() / 255) / 50
    np.testing.assert_allclose(
        shot_noise(X, 5, RANDOMNESS).numpy(), expected.clip(0, 1), rtol=0, atol=0.5 / 255 + 1e-6
    )


def test_impulses_are_black_and_white_in_equal_parts() -> None:
    gray = torch.full((8, 3, 64, 64), 128 / 255)
    noisy = impulse_noise(gray, 5, Keys.of(3, torch.arange(8)))
    n = gray.numel()
    share = 0.07
    for value in (0.0, 1.0):
        assert abs(float((noisy == value).double().mean()) - share / 2) < 5 * math.sqrt(
            share / 2 / n
        )


def test_blurs_leave_a_flat_image_flat_and_spread_a_point() -> None:
    flat = torch.full((1, 1, 33, 33), 100 / 255)
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 12, 16] = 1  # not the center, which stays where it is however far one zooms
    for blur in (gaussian_blur, defocus_blur, motion_blur, zoom_blur):
        torch.testing.assert_close(blur(flat, 5, RANDOMNESS[:1]), flat, rtol=0, atol=1e-6)
        assert float(blur(point, 5, RANDOMNESS[:1]).max()) < 0.6
    spread = defocus_blur(point, 5, RANDOMNESS[:1])[0, 0, 11:14, 15:18]
    torch.testing.assert_close(
        spread, torch.full((3, 3), 1 / 9), rtol=0, atol=1 / 255
    )  # a disk of radius 1.5 is 3x3 pixels
    bell = gaussian_blur(point, 5, RANDOMNESS[:1])[0, 0]
    assert float(bell[12, 16] / bell[12, 17]) == pytest.approx(
        math.exp(0.5), abs=0.1
    )  # a standard deviation away


def test_contrast_keeps_the_mean_and_scales_what_is_around_it() -> None:
    got = contrast(X, 2, RANDOMNESS)
    torch.testing.assert_close(got.mean((2, 3)), X.mean((2, 3)), rtol=0, atol=0.002)
    torch.testing.assert_close(got.std((2, 3)), X.std((2, 3)) / 2, rtol=0, atol=0.002)


def test_fog_lifts_the_darkest_more_than_the_brightest() -> None:
    thick = fog(X, 5, RANDOMNESS)
    dark = X < 0.2
    bright = X > 0.9
    assert float((thick - X)[dark].mean()) > 0.2
    assert float((thick - X)[bright].mean()) < 0


def test_the_landscape_is_as_high_as_it_is_deep_and_smoother_where_noise_decays() -> None:
    rough, smooth = (plasma(32, decay, RANDOMNESS) for decay in (1.2, 3.0))
    for land in (rough, smooth):
        assert land.flatten(1).amin(1).eq(0).all()
        assert land.flatten(1).amax(1).eq(1).all()
    steep = [float((land - land.roll(1, 1)).abs().mean()) for land in (rough, smooth)]
    assert steep[1] < steep[0] / 2
    with pytest.raises(ValueError, match="power of two"):
        plasma(24, 2.0, RANDOMNESS)


def test_pixelation_is_that_of_pillow() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (X[0] * 255).round().byte().permute(1, 2, 0).numpy()
    for severity, scale in enumerate((0.95, 0.9, 0.85, 0.75, 0.65), start=1):
        small = int(32 * scale)
        there = (
            image.fromarray(pixels).resize((small, small), image.BOX).resize((32, 32), image.BOX)
        )
        want = torch.from_numpy(np.array(there)).permute(2, 0, 1) / 255
        torch.testing.assert_close(
            pixelate(X[:1], severity, RANDOMNESS[:1])[0], want, rtol=0, atol=1 / 255 + 1e-5
        )  # it rounds twice
