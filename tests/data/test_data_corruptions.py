"""Common corruptions: pure functions of image, severity and random keys; stronger with severity."""

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
KEYS = Keys.of(0, torch.arange(N))


def fractal_images() -> Tensor:
    """Images of 32x32 with detail at every scale; the channels are correlated but not equal."""
    x = torch.stack([plasma(32, 1.3, Keys.of(k, torch.arange(N))) for k in (10, 11, 12)], 1)
    return ((x + x[:, :1]) / 2 * 255).round().div(255).float()


X = fractal_images()
each = pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS)


@each
def test_the_error_increases_with_severity(corruption: Corruption) -> None:
    errors = [
        float((corruption(X, severity, KEYS) - X).square().mean()) for severity in range(1, 6)
    ]
    assert errors[0] > 0
    increases = [later - earlier for earlier, later in pairwise(errors)]
    # Severities 3 and 4 of motion blur differ only beyond six standard deviations of a Gaussian.
    if corruption is motion_blur:
        assert abs(increases.pop(2)) < 1e-6
    assert all(increase > 0 for increase in increases)


@each
def test_the_same_keys_give_the_same_bytes_and_the_input_is_not_modified(
    corruption: Corruption,
) -> None:
    before = X.clone()
    once = corruption(X, 3, KEYS)
    again = corruption(X, 3, KEYS)
    assert torch.equal(once, again)
    assert torch.equal(X, before)
    assert once.shape == X.shape
    assert once.dtype == X.dtype
    torch.testing.assert_close(once * 255, (once * 255).round(), rtol=0, atol=1e-4)
    assert 0 <= float(once.min()) <= float(once.max()) <= 1


@each
def test_a_corrupted_image_does_not_depend_on_the_rest_of_the_batch(corruption: Corruption) -> None:
    rows = torch.tensor([7, 2])
    torch.testing.assert_close(
        corruption(X[rows], 4, KEYS[rows]),
        corruption(X, 4, KEYS)[rows],
        rtol=0,
        atol=1 / 255 + 1e-6,
    )


@each
def test_gray_images_of_another_size_are_supported(corruption: Corruption) -> None:
    assert corruption(X[:, :1, :8, :12], 5, KEYS).shape == (N, 1, 8, 12)


@each
def test_a_severity_outside_1_to_5_is_rejected(corruption: Corruption) -> None:
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity must be 1 to 5, got {severity}"):
            corruption(X, severity, KEYS)


def test_which_corruptions_are_randomized() -> None:
    other = Keys.of(1, torch.arange(N))
    randomized = {
        name
        for name, corruption in CORRUPTIONS.items()
        if not torch.equal(corruption(X, 3, KEYS), corruption(X, 3, other))
    }
    assert randomized == {
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
        got = brightness(x, severity, KEYS[:1])
        for i in range(5):
            for j in range(7):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                want = torch.tensor(
                    colorsys.hsv_to_rgb(h, s, min(v + raised, 1)), dtype=torch.float64
                )
                # Results are rounded to bytes.
                torch.testing.assert_close(got[0, :, i, j], want, rtol=0, atol=0.5 / 255 + 1e-12)
    black = torch.zeros(1, 3, 1, 1)
    torch.testing.assert_close(
        brightness(black, 1, KEYS[:1]), torch.full_like(black, 13 / 255), rtol=0, atol=1e-6
    )


def test_noise_has_the_declared_standard_deviation() -> None:
    gray = torch.full((8, 3, 64, 64), 128 / 255)
    keys = Keys.of(3, torch.arange(8))
    sample = 8 * 3 * 64 * 64
    for severity, spread in enumerate((0.04, 0.06, 0.08, 0.09, 0.10), start=1):
        # The standard error of a standard deviation is s / sqrt(2 n). The tolerance is five of
        # them plus the rounding to bytes.
        got = float((gaussian_noise(gray, severity, keys) - gray).std())
        assert abs(got - spread) < 5 * spread / math.sqrt(2 * sample) + 2e-4
    for severity, spread in enumerate((0.06, 0.1, 0.12, 0.16, 0.2), start=1):
        got = float((speckle_noise(gray, severity, keys) - gray).std())
        assert abs(got - spread * 128 / 255) < 5 * spread / math.sqrt(2 * sample) + 2e-4
    for severity, photons in enumerate((500, 250, 100, 75, 50), start=1):
        noisy = shot_noise(gray, severity, keys)
        # The variance of a Poisson variable equals its mean.
        tolerance = 5 * math.sqrt(0.5 / photons / sample) + 2e-4
        assert abs(float(noisy.mean()) - 128 / 255) < tolerance
        assert float((noisy - gray).std()) == pytest.approx(
            math.sqrt(128 / 255 / photons), rel=0.02
        )


def test_shot_noise_is_the_inverse_cdf_of_poisson() -> None:
    from scipy.stats import poisson

    drawn = KEYS.uniform((3, 32, 32), torch.float64).numpy()
    expected = poisson.ppf(drawn, 50 * (X.double() * 255).round().numpy() / 255) / 50
    np.testing.assert_allclose(
        shot_noise(X, 5, KEYS).numpy(), expected.clip(0, 1), rtol=0, atol=0.5 / 255 + 1e-6
    )


def test_impulses_are_black_and_white_in_equal_parts() -> None:
    gray = torch.full((8, 3, 64, 64), 128 / 255)
    noisy = impulse_noise(gray, 5, Keys.of(3, torch.arange(8)))
    n = gray.numel()
    fraction = 0.07
    for value in (0.0, 1.0):
        found = float((noisy == value).double().mean())
        assert abs(found - fraction / 2) < 5 * math.sqrt(fraction / 2 / n)


def test_blurs_leave_a_flat_image_flat_and_spread_a_point() -> None:
    flat = torch.full((1, 1, 33, 33), 100 / 255)
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 12, 16] = 1  # not the center, which zooming does not move
    for blur in (gaussian_blur, defocus_blur, motion_blur, zoom_blur):
        torch.testing.assert_close(blur(flat, 5, KEYS[:1]), flat, rtol=0, atol=1e-6)
        assert float(blur(point, 5, KEYS[:1]).max()) < 0.6
    spread = defocus_blur(point, 5, KEYS[:1])[0, 0, 11:14, 15:18]
    # A disk of radius 1.5 covers 3x3 pixels.
    torch.testing.assert_close(spread, torch.full((3, 3), 1 / 9), rtol=0, atol=1 / 255)
    bell = gaussian_blur(point, 5, KEYS[:1])[0, 0]
    # The next pixel is one standard deviation away.
    assert float(bell[12, 16] / bell[12, 17]) == pytest.approx(math.exp(0.5), abs=0.1)


def test_contrast_keeps_the_mean_and_scales_the_standard_deviation() -> None:
    got = contrast(X, 2, KEYS)
    torch.testing.assert_close(got.mean((2, 3)), X.mean((2, 3)), rtol=0, atol=0.002)
    torch.testing.assert_close(got.std((2, 3)), X.std((2, 3)) / 2, rtol=0, atol=0.002)


def test_fog_brightens_dark_pixels_and_darkens_bright_ones() -> None:
    thick = fog(X, 5, KEYS)
    dark = X < 0.2
    bright = X > 0.9
    assert float((thick - X)[dark].mean()) > 0.2
    assert float((thick - X)[bright].mean()) < 0


def test_plasma_ranges_from_0_to_1_and_is_smoother_with_faster_decay() -> None:
    rough, smooth = (plasma(32, decay, KEYS) for decay in (1.2, 3.0))
    for pattern in (rough, smooth):
        assert pattern.flatten(1).amin(1).eq(0).all()
        assert pattern.flatten(1).amax(1).eq(1).all()
    variation = [float((p - p.roll(1, 1)).abs().mean()) for p in (rough, smooth)]
    assert variation[1] < variation[0] / 2
    with pytest.raises(ValueError, match="power of two"):
        plasma(24, 2.0, KEYS)


def test_pixelate_agrees_with_pillow() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (X[0] * 255).round().byte().permute(1, 2, 0).numpy()
    for severity, scale in enumerate((0.95, 0.9, 0.85, 0.75, 0.65), start=1):
        small = int(32 * scale)
        coarse = image.fromarray(pixels).resize((small, small), image.BOX)
        reference = np.array(coarse.resize((32, 32), image.BOX))
        want = torch.from_numpy(reference).permute(2, 0, 1) / 255
        # Pillow rounds twice.
        torch.testing.assert_close(
            pixelate(X[:1], severity, KEYS[:1])[0], want, rtol=0, atol=1 / 255 + 1e-5
        )
