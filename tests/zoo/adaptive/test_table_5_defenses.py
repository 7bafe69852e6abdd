"""Five defenses of Croce et al. 2022, Table 5: outputs compared with explicit equations."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from tests.zoo.adaptive.purifiers import build_module, gradient, images, smooth_net
from tests.zoo.adaptive.small_defenses import build_module as build_norms
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import saddlepoint as sp
from saddlepoint.defenses import Context
from saddlepoint.zoo.adaptive.fitting import Phase
from saddlepoint.zoo.adaptive.further import (
    AttributionSharpening,
    CovariateShiftAdaptation,
    EquilibriumDecoder,
    ImplicitRepresentation,
    JointOptimization,
    Tailoring,
)

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 3


def context(n=N, **options):
    return Context.seeded(0, n) if not options else Context(Context.seeded(0, n).keys, **options)


def normed_net():
    """Build a network with batch norm, whose statistics are not 0 and 1."""
    return build_norms(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(48, 4),
        )
    )


def test_covariate_shift_adaptation_has_the_statistics_of_the_batch():
    net = normed_net()
    x = images(N)
    trace = CovariateShiftAdaptation(net).trace(x, context())
    assert trace.names == ("static", "adapted")
    assert_close(trace.views[0].logits, net(x), **EXACT)
    reference = copy.deepcopy(net).train()
    assert_close(trace.last, reference(x), rtol=0, atol=1e-12)
    assert not torch.allclose(trace.last, net(x))
    far = CovariateShiftAdaptation(net, prior=1e12).trace(x, context()).last
    assert_close(far, net(x), rtol=0, atol=1e-9)


def test_other_images_of_the_batch_change_the_adapted_output():
    defense = CovariateShiftAdaptation(normed_net())
    x = images(N)
    moved = torch.cat([x[:1], 1 - x[1:]])
    one, two = (defense.trace(v, context()).last[0] for v in (x, moved))
    assert defense.coupled
    assert (one - two).abs().max() > 1e-3


def test_one_step_of_tailoring_is_gradient_descent_on_each_images_own_parameters():
    net = normed_net()
    x = images(N)
    defense = Tailoring(net, rate=0.5, samples=2)
    ctx = Context.seeded(0, N)
    draws = [ctx.randn(1, 4, 4, dtype=x.dtype) for _ in range(2)]
    last = defense.trace(x, context()).last
    for i in range(N):
        own = copy.deepcopy(net)
        scales = (own[1].weight, own[1].bias)

        def divergence(own=own, i=i):
            p = own(x[i : i + 1]).softmax(1)
            losses = []
            for draw in draws:
                q = own(x[i : i + 1] + 0.1 * draw[i : i + 1]).softmax(1)
                losses.append((p * (p / q).log()).sum())
            return sum(losses) / 2

        before = divergence()
        grads = torch.autograd.grad(before, scales)
        with torch.no_grad():
            for scale, grad in zip(scales, grads, strict=True):
                scale -= 0.5 * grad
        assert divergence() < before
        assert_close(last[i : i + 1], own(x[i : i + 1]), rtol=0, atol=1e-12)


def test_tailoring_without_steps_is_the_network_and_under_bpda_its_parameters_are_constants():
    net = normed_net()
    x = images(N)
    assert_close(Tailoring(net, steps=0).trace(x, context()).last, net(x), rtol=0, atol=1e-12)
    defense = Tailoring(net, steps=2, rate=0.5)
    leaf = x.clone().requires_grad_()
    bpda = context(rules={"tailor": sp.BPDA()})
    (grad,) = torch.autograd.grad(defense.trace(leaf, bpda).last.sum(), leaf)
    (exact,) = torch.autograd.grad(defense.trace(leaf, context()).last.sum(), leaf)
    assert grad.abs().max() > 0
    assert (grad - exact).abs().max() > 1e-6


def sharpened(x, weights, window, reach, bandwidth):
    """Apply one sharpening step, one pixel at a time."""
    n, _, height, width = x.shape
    result = torch.zeros_like(x)
    edge = window // 2
    for i in range(n):
        for r in range(height):
            for c in range(width):
                total = 0
                value = 0
                for a in range(max(r - edge, 0), min(r + edge + 1, height)):
                    for b in range(max(c - edge, 0), min(c + edge + 1, width)):
                        color = (x[i, :, r, c] - x[i, :, a, b]).square().sum()
                        place = (r - a) ** 2 + (c - b) ** 2
                        weight = weights[i, 0, a, b] * torch.exp(
                            -color / (2 * bandwidth**2) - place / (2 * reach**2)
                        )
                        total = total + weight
                        value = value + weight * x[i, :, a, b]
                result[i, :, r, c] = value / total
    return result


def test_sharpening_moves_pixels_to_the_weighted_mean_of_their_neighbors():
    net = smooth_net()
    x = images(N)
    defense = AttributionSharpening(net, steps=2, window=3, reach=0.8, bandwidth=0.2)
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(net(leaf).amax(1).sum(), leaf)
    weights = grad.abs().sum(1, keepdim=True)
    weights = weights / weights.mean((2, 3), keepdim=True) + 0.1
    assert_close(defense.attributions(x), weights, rtol=0, atol=1e-12)
    v = x
    for _ in range(2):
        v = sharpened(v, weights, 3, 0.8, 0.2)
    assert_close(defense.trace(x, context()).last, net(v), rtol=0, atol=1e-12)
    assert_close(
        AttributionSharpening(net, window=1).trace(x, context()).last, net(x), rtol=0, atol=1e-12
    )


def test_the_guide_of_sharpening_may_be_another_network():
    x = images(N)
    one = AttributionSharpening(smooth_net(), smooth_net(seed=9)).attributions(x)
    assert_close(one, AttributionSharpening(smooth_net(seed=9)).attributions(x), **EXACT)


def representation(steps=30, key=5):
    net = build_module(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(6 * 16, 4)),
    )
    return ImplicitRepresentation(net, key=key, width=6, frequencies=2, steps=steps, rate=0.02)


def test_the_representation_is_the_hidden_layer_of_a_network_fitted_by_adam():
    defense = representation(steps=5)
    x = images(1)
    start = defense._initial_weights(x)
    shapes = defense._shapes(1)
    layers = [
        part.reshape(shape).clone().requires_grad_()
        for part, shape in zip(start[0].split([math.prod(s) for s in shapes]), shapes, strict=True)
    ]
    optimizer = torch.optim.Adam(layers, 0.02)
    positions = defense._positions(x)
    for _ in range(5):
        hidden = ((positions @ layers[0]).relu() @ layers[1]).relu()
        loss = functional.mse_loss(hidden @ layers[2], x.view(16, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    hidden = ((positions @ layers[0]).relu() @ layers[1]).relu()
    expected = hidden.T.reshape(1, 6, 4, 4)
    # Adam divides by the size of gradients, some of which are close to zero.
    assert_close(defense.represent(x), expected.detach(), rtol=0, atol=1e-7)


def test_images_are_fitted_independently_and_the_result_depends_on_the_key():
    x = images(N)
    defense = representation()
    whole = defense.represent(x)
    alone = torch.cat([defense.represent(x[i : i + 1]) for i in range(N)])
    assert_close(whole, alone, rtol=0, atol=1e-9)
    assert (whole - representation(key=6).represent(x)).abs().max() > 0.01
    logits = defense.trace(x, context()).last
    assert_close(logits, defense.net(whole), rtol=0, atol=1e-12)
    leaf = x.clone().requires_grad_()
    assert torch.autograd.grad(defense.trace(leaf, context()).last.sum(), leaf)[0].abs().max() > 0


def joint(**options):
    decoder = build_module(lambda: EquilibriumDecoder((1, 4, 4), code=3, width=8))
    return JointOptimization(smooth_net(), decoder, **{"rate": 0.3, "decay": 0.05, **options})


def test_the_joint_iteration_ends_at_a_stationary_point_of_the_reconstruction():
    """The gradient of the objective is computed by unrolling the fixed point."""
    defense = joint(iterations=600, decay=0.2)
    x = images(N)
    with torch.no_grad():
        z, _, u = defense.solve(x)
    decoder = defense.decoder
    assert_close(decoder.cell(z, u), z, rtol=0, atol=1e-8)

    def objective(u):
        state = torch.zeros(N, 8, dtype=x.dtype)
        for _ in range(200):
            state = decoder.cell(state, u)
        error = (decoder.decode(state) - x).square().sum() / 2
        return error + 0.2 * u.square().sum() / 2

    leaf = u.clone().requires_grad_()
    value = objective(leaf)
    (grad,) = torch.autograd.grad(value, leaf)
    assert grad.abs().max() < 1e-6
    assert value < objective(torch.zeros_like(u))
    assert_close(
        defense.trace(x, context()).last, defense.net(decoder.decode(z)), rtol=0, atol=1e-8
    )


def test_gradients_pass_through_the_joint_iteration():
    defense = joint(iterations=4)
    x = images(N)
    exact = gradient(defense, x, torch.tensor([0, 1, 2]))
    bpda = gradient(defense, x, torch.tensor([0, 1, 2]), rules={"purify": sp.BPDA()})
    assert exact.abs().max() > 0
    assert (exact - bpda).abs().max() > 1e-6


@pytest.mark.parametrize(
    "build",
    [
        lambda: joint(iterations=4),
        lambda: Tailoring(normed_net(), steps=2, rate=0.5),
        lambda: representation(steps=5),
        lambda: AttributionSharpening(smooth_net(), window=3, reach=0.8, bandwidth=0.2),
        lambda: CovariateShiftAdaptation(normed_net()),
    ],
    ids=["joint", "tailoring", "representation", "sharpening", "covariate shift"],
)
def test_exact_gradients_are_finite_differences(build):
    """Central differences with step h have a truncation error of order h^2."""
    defense = build()
    x = images(N)
    direction = images(N, seed=7) - 0.5

    def value(v):
        logits = defense.trace(v, context()).last
        return (logits * torch.arange(1, logits.shape[1] + 1)).sum()

    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(value(leaf), leaf)
    step = 1e-5 * direction
    with torch.no_grad():
        difference = (value(x + step) - value(x - step)) / 2e-5
    assert_close((grad * direction).sum(), difference, rtol=1e-4, atol=1e-8)


def test_a_fitted_decoder_reconstructs_better_and_the_given_one_is_unchanged():
    defense = joint(iterations=40)
    x = images(32)
    before = copy.deepcopy(defense.decoder.state_dict())
    fitted = defense.fit(x, phase=Phase(epochs=15, batch_size=16, rate=0.01))

    def error(one):
        with torch.no_grad():
            return (one.decoder.decode(one.solve(x).z) - x).square().mean()

    assert error(fitted) < 0.5 * error(defense)
    assert_close(dict(defense.decoder.state_dict()), dict(before), **EXACT)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CovariateShiftAdaptation(normed_net(), prior=-1), "prior >= 0"),
        (lambda: CovariateShiftAdaptation(smooth_net()), "no batch normalization"),
        (lambda: Tailoring(normed_net(), samples=0), "samples=0"),
        (lambda: AttributionSharpening(smooth_net(), window=4), "odd window"),
        (lambda: ImplicitRepresentation(smooth_net(), key=0, width=0), "width=0"),
        (lambda: joint(rate=0.0), "rate=0.0"),
    ],
)
def test_invalid_arguments_raise(build, message):
    with pytest.raises(ValueError, match=message):
        build()
