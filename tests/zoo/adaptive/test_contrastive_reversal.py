"""Contrastive reversal: augmentations, the loss, the descent and the trained head."""

import colorsys
import math
from dataclasses import replace

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import Recording, context, images, network, respond, reversal
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.gradients.rule import Exact
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import ContrastiveReversal
from saddlepoint.zoo.adaptive.contrastive import Augmentation, contrastive_head, contrastive_loss
from saddlepoint.zoo.adaptive.fitting import Phase

EXACT = {"rtol": 0.0, "atol": 0.0}
UNCHANGED = Augmentation(
    area=(1, 1), ratio=(1, 1), brightness=0, contrast=0, saturation=0, hue=0, gray=0
)


def numbers(n=1, **chosen):
    """Return [n, 14] numbers without flip and gray; `chosen` sets single numbers by name."""
    positions = {
        "area": 0,
        "ratio": 1,
        "top": 2,
        "left": 3,
        "flip": 4,
        "bright": 5,
        "contrast": 6,
        "color": 7,
        "hue": 8,
        "gray": 13,
    }
    u = torch.full((n, 14), 0.5, dtype=torch.float64)
    u[:, 9:13] = torch.linspace(0, 0.9, 4)  # brightness, contrast, saturation, hue: in this order
    u[:, 13] = 0.99
    for name, value in chosen.items():
        u[:, positions[name]] = value
    return u


def only(**changed):
    """Return an augmentation with these changes only."""
    return replace(UNCHANGED, **changed)


def test_changes_of_strength_zero_keep_the_image():
    x = images(3)
    assert_close(UNCHANGED(x, numbers(3)), x, rtol=0, atol=1e-15)


def test_the_flip_exchanges_left_and_right():
    x = images(2)
    assert_close(UNCHANGED(x, numbers(2, flip=0.49)), x.flip(3), rtol=0, atol=1e-15)


@pytest.mark.parametrize("area", [0.08, 0.3, 0.7])
def test_a_crop_is_resized_like_torch_interpolate(area):
    x = images(2)
    u = numbers(2, ratio=0.8, top=0.6, left=0.2)
    crop = only(area=(area, area), ratio=(3 / 4, 4 / 3))
    ratio = math.exp(math.log(3 / 4) + 0.8 * (math.log(4 / 3) - math.log(3 / 4)))
    height = min(round(math.sqrt(64 * area / ratio)), 8)
    width = min(round(math.sqrt(64 * area * ratio)), 8)
    top = int(0.6 * (8 - height + 1))
    left = int(0.2 * (8 - width + 1))
    cropped = x[:, :, top : top + height, left : left + width]
    expected = nn.functional.interpolate(cropped, size=(8, 8), mode="bilinear", align_corners=False)
    assert_close(crop(x, u), expected, rtol=0, atol=1e-13)


def test_brightness_contrast_and_saturation_blend_toward_black_the_mean_and_gray():
    x = images(2)
    gray = (0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]).expand_as(x)
    mean = gray.mean((1, 2, 3), keepdim=True)
    f = 0.2 + 1.6 * 0.25  # 1 +- 0.8 at the uniform number 0.25
    cases = [
        (only(brightness=0.8), {"bright": 0.25}, f * x),
        (only(contrast=0.8), {"contrast": 0.25}, f * x + (1 - f) * mean),
        (only(saturation=0.8), {"color": 0.25}, f * x + (1 - f) * gray),
        (only(gray=0.2), {"gray": 0.19}, gray),
        (only(brightness=0.8), {"bright": 0.999999}, (1.8 * x).clamp(0, 1)),
    ]
    for augment, chosen, expected in cases:
        assert_close(augment(x, numbers(2, **chosen)), expected, rtol=0, atol=2e-6)


def test_the_hue_rotates_like_the_colorsys_module():
    x = uniform(80, 1, 3, 4, 4)
    turn = 0.2 * (2 * 0.9 - 1)
    found = only(hue=0.2)(x, numbers(hue=0.9))
    for i in range(4):
        for j in range(4):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
            assert found[0, :, i, j].tolist() == pytest.approx(
                colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-12
            )


def test_gray_images_are_not_changed_by_a_hue_rotation():
    x = uniform(81, 2, 1, 8, 8).expand(2, 3, 8, 8)
    assert_close(only(hue=0.2)(x, numbers(2, hue=0.9)), x, rtol=0, atol=1e-14)


def test_the_numbers_determine_the_order_of_the_changes():
    """Brightness then contrast, and contrast then brightness, with clipping in between."""
    x = images(1)
    u = numbers(bright=1 - 1e-12, contrast=1 - 1e-12)
    augment = only(brightness=0.8, contrast=0.8)
    reversed_order = u.clone()
    reversed_order[:, 9:11] = u[:, 9:11].flip(1)

    def brighten(v):
        return (1.8 * v).clamp(0, 1)

    def add_contrast(v):
        gray = 0.299 * v[:, :1] + 0.587 * v[:, 1:2] + 0.114 * v[:, 2:]
        mean = gray.mean((1, 2, 3), keepdim=True)
        return (1.8 * v - 0.8 * mean).clamp(0, 1)

    assert_close(augment(x, u), add_contrast(brighten(x)), rtol=0, atol=1e-10)
    assert_close(augment(x, reversed_order), brighten(add_contrast(x)), rtol=0, atol=1e-10)


def test_images_with_one_channel_are_augmented():
    x = uniform(82, 3, 1, 8, 8)
    found = Augmentation()(x, uniform(83, 3, 14))
    assert found.shape == x.shape
    assert not torch.equal(found, x)


def test_a_tensor_without_four_dimensions_raises():
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]"):
        UNCHANGED(torch.zeros(2, 5), numbers(2))


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("views", [2, 4])
@pytest.mark.parametrize("external", [False, True], ids=["batch negatives", "external negatives"])
def test_the_loss_equals_an_explicit_loop(views, external):
    z = normal(84, views, 3, 5)
    bank = normal(85, 4, 5)
    rows = 3
    found = contrastive_loss(z, bank if external else None, temperature=0.2)
    for n in range(rows):
        terms = []
        for v in range(views):
            positives = [cosine(z[v, n], z[w, n]) / 0.2 for w in range(views) if w != v]
            others = (
                bank if external else [z[w, m] for w in range(views) for m in range(rows) if m != n]
            )
            negatives = [cosine(z[v, n], other) / 0.2 for other in others]
            terms.append(math.log(sum(map(math.exp, positives + negatives))) - positives[0])
        assert float(found[n]) == pytest.approx(sum(terms) / views, rel=1e-12)


def test_the_loss_of_one_image_with_two_views_and_no_negatives_is_zero():
    z = normal(86, 2, 1, 5)
    assert_close(contrastive_loss(z), torch.zeros(1, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per example"])
@pytest.mark.parametrize("external", [True, False], ids=["external negatives", "batch negatives"])
def test_the_output_equals_the_explicit_descent(external, shared):
    """The k-th pass through the site folds k into the keys, and its first draw folds in 1."""
    x = images()
    bank = images(6, 70)
    defense = reversal(
        shared_augmentation=shared, negatives=bank if external else None, steps=4, radius=5 / 255
    )
    keys = context(5).keys
    net = defense.net
    augment = Augmentation()

    def embed(v):
        return defense.head(net[:7](v))

    start = x + 5 / 255 * (2 * keys.fold_in(1).fold_in(1).uniform((3, 8, 8), torch.float64) - 1)
    v = start.clamp(0, 1)
    for k in range(2, 6):
        drawn = keys.fold_in(k).fold_in(1)
        drawn = Keys.of(drawn.batch_seed(), torch.arange(1)) if shared else drawn
        u = drawn.uniform((4, 14), torch.float64).expand(5, 4, 14)
        leaf = v.clone().requires_grad_()
        z = torch.stack([embed(augment(leaf, u[:, view])) for view in range(4)])
        loss = contrastive_loss(
            z, embed(bank).detach() if external else None, temperature=0.2
        ).sum()
        v = v - 2 / 255 * torch.autograd.grad(loss, leaf)[0].sign()
        v = torch.minimum(torch.maximum(v, x - 5 / 255), x + 5 / 255).clamp(0, 1)
    assert_close(respond(defense, x).detach(), net(v).detach(), rtol=0, atol=1e-12)


def test_without_random_start_the_first_step_starts_at_the_image():
    defense = reversal(random_start=False, steps=1)
    x = images()
    record = Recording()
    with torch.no_grad():
        respond(defense, x, reverse=record)
    assert len(record.states) == 1
    length = (record.states[0] - x).abs() * 255 / 2
    # Each pixel moves by one step, or not at all if no view contains it.
    assert_close(length, length.round(), rtol=0, atol=1e-12)
    assert 0.5 < length.mean() < 1


def test_all_iterates_stay_in_the_perturbation_set():
    x = uniform(87, 5, 3, 8, 8).round()  # corners of the box
    record = Recording()
    with torch.no_grad():
        respond(reversal(steps=8, step_size=6 / 255, views=2), x, reverse=record)
    for state in record.states:
        assert sp.Linf(16 / 255).contains(state, x).all()


def test_clipping_reduces_the_exact_gradient_but_not_that_of_bpda():
    x = torch.zeros(2, 3, 8, 8, dtype=torch.float64).requires_grad_()
    defense = reversal(random_start=False, steps=1, views=2)
    record = Recording()
    with torch.no_grad():
        respond(defense, x, reverse=record)
    clipped = record.states[0] == 0
    exact, bpda = (
        torch.autograd.grad(respond(defense, x, reverse=rule).sum(), x)[0]
        for rule in (Exact(), sp.BPDA())
    )
    assert clipped.any()
    assert (bpda[clipped] != 0).any()
    # At the bound itself autograd splits the gradient between the pixel and the bound.
    assert (exact[clipped].abs() <= bpda[clipped].abs() + 1e-15).all()


@pytest.fixture(scope="module")
def fitted():
    x = uniform(88, 48, 3, 1, 1).expand(48, 3, 8, 8) * 0.6 + 0.3 * uniform(89, 48, 3, 8, 8)
    mild = Augmentation(
        area=(0.5, 1.0), brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02, gray=0.0
    )
    defense = ContrastiveReversal(network(), steps=2, augment=mild)
    return x, defense.fit(x, phase=Phase(0, 16, 1e-3)), defense.fit(x, phase=Phase(15, 16, 1e-2))


def test_fitting_lowers_the_contrastive_loss_and_keeps_the_network(fitted):
    x, untrained, trained = fitted
    u = uniform(90, 2, 48, 14)
    with torch.no_grad():
        before, after = (d.loss(x, u).mean() for d in (untrained, trained))
    assert after < before - 0.2
    assert not trained.head.training
    assert_close(dict(trained.net.state_dict()), dict(network().state_dict()), **EXACT)


def test_purification_lowers_the_contrastive_loss(fitted):
    """All views are equal to the image, so every step descends the same loss."""
    x, _, trained = fitted
    defense = ContrastiveReversal(
        trained.net,
        trained.head,
        steps=15,
        step_size=1 / 255,
        shared_augmentation=False,
        views=2,
        augment=UNCHANGED,
        random_start=False,
    )
    record = Recording()
    with torch.no_grad():
        respond(defense, x[:8], reverse=record)
    u = numbers(16).view(2, 8, 14).clone()
    # The views are equal, so only the negatives count: each image moves away from the others.
    with torch.no_grad():
        assert defense.loss(record.states[-1], u).sum() < defense.loss(x[:8], u).sum()


def test_the_default_sizes_are_those_of_the_released_code():
    assert [tuple(p.shape) for p in contrastive_head(640).parameters()] == [
        (256, 640),
        (256,),
        (256,),
        (256,),
        (16, 256),
        (16,),
    ]
    defense = ContrastiveReversal(network())
    assert (defense.steps, defense.step_size, defense.radius, defense.views) == (
        40,
        2 / 255,
        16 / 255,
        4,
    )


def test_fitting_with_one_image_raises():
    with pytest.raises(ValueError, match="at least two"):
        ContrastiveReversal(network()).fit(images(1))
