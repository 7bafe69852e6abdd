"""Contrastive reversal: augmentations of known effect, the loss as a double loop, the descent written out, the trained head."""

import colorsys
import math
from dataclasses import replace

import pytest
import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive.small_defenses import Recording, respond, context, images, network, reversal
from torch import nn
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import ContrastiveReversal
from saddlepoint.zoo.adaptive.contrastive import Augmentation, contrastive_head, contrastive_loss
from saddlepoint.zoo.adaptive.fitting import Phase

EXACT = {"rtol": 0.0, "atol": 0.0}
STILL = Augmentation(
    area=(1, 1), ratio=(1, 1), brightness=0, contrast=0, saturation=0, hue=0, gray=0
)


def numbers(n=1, **chosen):
    """[n, 14] that change nothing under STILL: no mirror, no gray; positions are named as the augmentation reads them."""
    places = {
        "area": 0,
        "ratio": 1,
        "down": 2,
        "right": 3,
        "mirror": 4,
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
        u[:, places[name]] = value
    return u


def only(**changed):
    return replace(STILL, **changed)


def test_changes_of_no_strength_leave_the_image():
    x = images(3)
    assert_close(STILL(x, numbers(3)), x, rtol=0, atol=1e-15)


def test_the_mirror_swaps_left_and_right():
    x = images(2)
    assert_close(STILL(x, numbers(2, mirror=0.49)), x.flip(3), rtol=0, atol=1e-15)


@pytest.mark.parametrize("area", [0.08, 0.3, 0.7])
def test_a_crop_is_cut_and_resized_as_interpolate_does(area):
    x = images(2)
    u = numbers(2, ratio=0.8, down=0.6, right=0.2)
    crop = only(area=(area, area), ratio=(3 / 4, 4 / 3))
    ratio = math.exp(math.log(3 / 4) + 0.8 * (math.log(4 / 3) - math.log(3 / 4)))
    tall = min(round(math.sqrt(64 * area / ratio)), 8)
    wide = min(round(math.sqrt(64 * area * ratio)), 8)
    top = int(0.6 * (8 - tall + 1))
    left = int(0.2 * (8 - wide + 1))
    cut = x[:, :, top : top + tall, left : left + wide]
    expected = nn.functional.interpolate(cut, size=(8, 8), mode="bilinear", align_corners=False)
    assert_close(crop(x, u), expected, rtol=0, atol=1e-13)


def test_brightness_contrast_and_saturation_blend_towards_black_the_mean_and_gray():
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


def test_the_hue_turns_as_the_standard_library_turns_it():
    x = uniform(80, 1, 3, 4, 4)
    turn = 0.2 * (2 * 0.9 - 1)
    found = only(hue=0.2)(x, numbers(hue=0.9))
    for i in range(4):
        for j in range(4):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
            assert found[0, :, i, j].tolist() == pytest.approx(
                colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-12
            )


def test_gray_images_have_no_hue_to_turn():
    x = uniform(81, 2, 1, 8, 8).expand(2, 3, 8, 8)
    assert_close(only(hue=0.2)(x, numbers(2, hue=0.9)), x, rtol=0, atol=1e-14)


def test_changes_come_in_the_order_that_the_numbers_say():
    """Brightness then contrast, and contrast then brightness, with clipping in between."""
    x = images(1)
    u = numbers(bright=1 - 1e-12, contrast=1 - 1e-12)
    augment = only(brightness=0.8, contrast=0.8)
    back = u.clone()
    back[:, 9:11] = u[:, 9:11].flip(1)
    bright = lambda v: (1.8 * v).clamp(0, 1)  # noqa: E731

    def strong(v):
        mean = (0.299 * v[:, :1] + 0.587 * v[:, 1:2] + 0.114 * v[:, 2:]).mean(
            (1, 2, 3), keepdim=True
        )
        return (1.8 * v - 0.8 * mean).clamp(0, 1)

    assert_close(augment(x, u), strong(bright(x)), rtol=0, atol=1e-10)
    assert_close(augment(x, back), bright(strong(x)), rtol=0, atol=1e-10)


def test_images_of_one_channel_are_augmented_too():
    x = uniform(82, 3, 1, 8, 8)
    found = Augmentation()(x, uniform(83, 3, 14))
    assert found.shape == x.shape
    assert not torch.equal(found, x)


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"\[N, C, H, W\]"):
        STILL(torch.zeros(2, 5), numbers(2))


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("views", [2, 4])
@pytest.mark.parametrize("external", [False, True], ids=["batch negatives", "external negatives"])
def test_the_loss_equals_its_double_loop(views, external):
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


def test_one_image_of_two_views_and_no_negatives_has_nothing_to_lose():
    z = normal(86, 2, 1, 5)
    assert_close(contrastive_loss(z), torch.zeros(1, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per example"])
@pytest.mark.parametrize("external", [True, False], ids=["external negatives", "batch negatives"])
def test_the_forward_equals_the_descent_written_out(external, shared):
    """Every draw is the context's: the k-th crossing of the site folds k into the coins, its first draw 1 more."""
    x = images()
    bank = images(6, 70)
    defense = reversal(
        shared_augmentation=shared, negatives=bank if external else None, steps=4, radius=5 / 255
    )
    keys = context(5).keys
    net = defense.net
    augment = Augmentation()
    embed = lambda v: defense.head(net[:7](v))  # noqa: E731
    start = x + 5 / 255 * (2 * keys.fold_in(1).fold_in(1).uniform((3, 8, 8), torch.float64) - 1)
    here = start.clamp(0, 1)
    for k in range(2, 6):
        drawn = keys.fold_in(k).fold_in(1)
        drawn = Keys.of(drawn.batch_seed(), torch.arange(1)) if shared else drawn
        u = drawn.uniform((4, 14), torch.float64).expand(5, 4, 14)
        leaf = here.clone().requires_grad_()
        z = torch.stack([embed(augment(leaf, u[:, v])) for v in range(4)])
        loss = contrastive_loss(
            z, embed(bank).detach() if external else None, temperature=0.2
        ).sum()
        here = here - 2 / 255 * torch.autograd.grad(loss, leaf)[0].sign()
        here = torch.minimum(torch.maximum(here, x - 5 / 255), x + 5 / 255).clamp(0, 1)
    assert_close(respond(defense, x).detach(), net(here).detach(), rtol=0, atol=1e-12)


def test_from_the_image_itself_the_first_step_is_taken_at_the_image():
    defense = reversal(random_start=False, steps=1)
    x = images()
    record = Recording()
    with torch.no_grad():
        respond(defense, x, reverse=record)
    assert len(record.states) == 1
    length = (record.states[0] - x).abs() * 255 / 2
    assert_close(
        length, length.round(), rtol=0, atol=1e-12
    )  # one step, or none where no view has seen the pixel
    assert 0.5 < length.mean() < 1


def test_all_iterates_stay_in_the_set():
    x = uniform(87, 5, 3, 8, 8).round()
    record = Recording()  # corners of the box
    with torch.no_grad():
        respond(reversal(steps=8, step_size=6 / 255, views=2), x, reverse=record)
    for state in record.states:
        assert sp.Linf(16 / 255).contains(state, x).all()


def test_where_the_box_binds_the_exact_gradient_is_cut_and_bpda_goes_through():
    x = torch.zeros(2, 3, 8, 8, dtype=torch.float64).requires_grad_()
    defense = reversal(random_start=False, steps=1, views=2)
    record = Recording()
    with torch.no_grad():
        respond(defense, x, reverse=record)
    clipped = record.states[0] == 0
    exact, through = (
        torch.autograd.grad(respond(defense, x, reverse=rule).sum(), x)[0]
        for rule in (sp.Exact(), sp.BPDA())
    )
    assert clipped.any()
    assert (through[clipped] != 0).any()
    # A pixel at the very bound splits its slope between itself and the bound, so it is at most the one that went through.
    assert (exact[clipped].abs() <= through[clipped].abs() + 1e-15).all()


@pytest.fixture(scope="module")
def fitted():
    x = uniform(88, 48, 3, 1, 1).expand(48, 3, 8, 8) * 0.6 + 0.3 * uniform(89, 48, 3, 8, 8)
    mild = Augmentation(
        area=(0.5, 1.0), brightness=0.1, contrast=0.1, saturation=0.1, hue=0.02, gray=0.0
    )
    defense = ContrastiveReversal(network(), steps=2, augment=mild)
    return x, defense.fit(x, phase=Phase(0, 16, 1e-3)), defense.fit(x, phase=Phase(15, 16, 1e-2))


def test_fitting_lowers_the_contrastive_loss_and_keeps_the_network(fitted):
    x, new, old = fitted
    u = uniform(90, 2, 48, 14)
    with torch.no_grad():
        before, after = (d.loss(x, u).mean() for d in (new, old))
    assert after < before - 0.2
    assert not old.head.training
    assert_close(dict(old.net.state_dict()), dict(network().state_dict()), **EXACT)


def test_purification_lowers_the_loss_that_it_descends(fitted):
    """With one fixed draw of views: what every step goes down."""
    x, _, old = fitted
    still = ContrastiveReversal(
        old.net,
        old.head,
        steps=15,
        step_size=1 / 255,
        shared_augmentation=False,
        views=2,
        augment=STILL,
        random_start=False,
    )
    record = Recording()
    with torch.no_grad():
        respond(still, x[:8], reverse=record)
    u = numbers(16).view(2, 8, 14).clone()
    # Without change in the views only negatives count: each image moves away from the others.
    with torch.no_grad():
        assert still.loss(record.states[-1], u).sum() < still.loss(x[:8], u).sum()


def test_the_head_has_the_released_sizes():
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


def test_two_images_are_needed_to_contrast():
    with pytest.raises(ValueError, match="at least two"):
        ContrastiveReversal(network()).fit(images(1))
