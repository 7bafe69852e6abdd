"""Adaptive denoising: noise, then steps along a score with adaptive step sizes."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import context, gradient, images, score_net, smooth_net
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context
from saddlepoint.gradients import BPDA
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import AdaptiveDenoising, constant

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5
Y = torch.tensor([0, 1, 2, 3, 0])


class LinearScore(nn.Module):
    """s(x) = -K (x - 1/2), with one K or one per example."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.eval()

    def forward(self, x):
        return -torch.as_tensor(self.k, dtype=x.dtype).view(-1, 1, 1, 1)[: len(x)] * (x - 0.5)


def states(defense, x, ctx=None):
    """Return the states x_0 to x_T of one run."""
    return list(defense._run(x, ctx or context(len(x))))


def to_grid(x):
    """Map [0, 1] to the grid of the score network."""
    return 255 / 256 * x + 1 / 512


def from_grid(x):
    """Map the grid of the score network to [0, 1]."""
    return (256 / 255 * x - 1 / 510).clamp(0, 1)


def test_the_two_grid_maps_are_inverse():
    x = images(N)
    assert_close(from_grid(to_grid(x)), x, rtol=1e-14, atol=0)


def test_a_linear_score_moves_by_the_same_fraction_for_every_strength():
    """c = 1 - 1e-3 K, so a = 0.05 / K: every step covers 5 % of the distance to 1/2."""
    defense = AdaptiveDenoising(smooth_net(), LinearScore(10.0), noise=0.0, steps=3, runs=1)
    x = images(N)
    found = states(defense, x)
    v = to_grid(x)
    for t in range(3):
        v = from_grid(v + 0.05 * (0.5 - v))
        assert_close(found[t + 1], v, rtol=1e-12, atol=0)


def test_step_sizes_are_clipped_and_short_steps_end_the_run():
    """a = 0.05 / K, clipped to [1e-5, 0.1].

    K = 0.1 gives 0.5, which is clipped to 0.1. K = 100 gives 5e-4, which ends the run.
    """
    defense = AdaptiveDenoising(
        smooth_net(), LinearScore([0.1, 100.0]), noise=0.0, steps=2, runs=1, coupled=False
    )
    x = images(2)
    first, second = states(defense, x)[1:]
    v = to_grid(x)
    assert_close(first[0], from_grid(v + 0.01 * (0.5 - v))[0], rtol=1e-12, atol=0)
    assert_close(first[1], v[1], **EXACT)
    assert_close(second[1], v[1], **EXACT)
    assert (second[0] != first[0]).any()


def test_the_released_version_keeps_mapping_examples_that_have_stopped():
    x = images(2)
    coupled = AdaptiveDenoising(smooth_net(), LinearScore([0.1, 100.0]), noise=0.0, steps=2, runs=1)
    end = states(coupled, x)[-1]
    assert_close(end[1], from_grid(from_grid(to_grid(x)))[1], rtol=1e-14, atol=0)
    alone = AdaptiveDenoising(smooth_net(), LinearScore(100.0), noise=0.0, steps=2, runs=1)
    # No example of the batch moves, so none is mapped.
    assert_close(states(alone, x[1:])[-1], to_grid(x)[1:], **EXACT)


def test_a_zero_score_moves_nothing_and_gradients_are_finite():
    defense = AdaptiveDenoising(smooth_net(), LinearScore(0.0), noise=0.1, coupled=False)
    x = images(N)
    assert_close(states(defense, x)[1], states(defense, x)[-1], **EXACT)
    assert gradient(defense, x, Y).isfinite().all()
    assert defense.respond(x, context(N)).isfinite().all()


def test_a_score_that_grows_along_itself_ends_the_run():
    """K < 0 gives c > 1 and a negative step size; the smallest one is used, which ends the run."""
    defense = AdaptiveDenoising(smooth_net(), LinearScore(-3.0), noise=0.0, runs=1)
    x = images(N)
    assert_close(states(defense, x)[-1], to_grid(x), **EXACT)


def test_the_output_is_that_of_equations_8_and_9():
    net = smooth_net()
    score = score_net()
    x = images(N)
    defense = AdaptiveDenoising(net, score, runs=3, steps=4, coupled=False)
    probabilities = []
    for run in range(3):
        # The draw at the site `noise` in the first step of this run; the runs alternate.
        n = (
            Keys.of(0, torch.arange(N))
            .fold_in(run + 1)
            .fold_in(1)
            .fold_in(1)
            .normal((1, 4, 4), torch.float64)
        )
        v = to_grid((x + 0.25 * n).clamp(0, 1))
        moving = torch.ones(N, dtype=torch.bool)
        for _ in range(4):
            g = score(v)
            ahead = score(v + 1e-3 * score(v))
            c = (g * ahead).sum((1, 2, 3)) / (g * g).sum((1, 2, 3))
            a = (0.05 * 1e-3 / (1 - c)).clamp(1e-5, 0.1)
            moving = moving & (a > 1e-3)
            v = torch.where(moving.view(-1, 1, 1, 1), from_grid(v + a.view(-1, 1, 1, 1) * g), v)
        probabilities.append(net(v).softmax(1))
    output = defense.respond(x, context(N)).exp()
    assert_close(output, torch.stack(probabilities).mean(0), rtol=1e-10, atol=0)
    assert_close(output.sum(1), torch.ones(N, dtype=torch.float64), rtol=1e-12, atol=0)


def test_more_runs_reduce_the_variance():
    """The variance of a mean over S runs is proportional to 1/S; S = 1 and 9, over 30 draws."""
    net = smooth_net()
    x = images(2)
    with torch.no_grad():
        net[5].weight.mul_(5)

    def variance(runs):
        defense = AdaptiveDenoising(net, score_net(), runs=runs, steps=1)
        draws = [
            defense.respond(x, Context(Keys.of(seed, torch.arange(2)))).exp() for seed in range(30)
        ]
        return torch.stack(draws).var(0).mean()

    assert variance(9) < variance(1) / 3


def test_bpda_treats_step_size_and_noise_as_constants():
    """The attack of Croce et al. 2022, Sec. B.9: step sizes and noise are constants."""
    net = smooth_net()
    score = score_net()
    x = images(N)
    defense = AdaptiveDenoising(net, score, runs=1, steps=3, noise=0.3, stop=0.0, coupled=False)
    found = gradient(defense, x, Y, rules={"noise": BPDA(), "step size": BPDA(constant)})
    n = (
        Keys.of(0, torch.arange(N))
        .fold_in(1)
        .fold_in(1)
        .fold_in(1)
        .normal((1, 4, 4), torch.float64)
    )
    leaf = x.clone().requires_grad_()
    v = to_grid(leaf + ((x + 0.3 * n).clamp(0, 1) - x))
    for _ in range(3):
        g = score(v)
        a = defense._step_size(g, v).detach()
        v = from_grid(v + a.view(-1, 1, 1, 1) * g)
    (expected,) = torch.autograd.grad(cross_entropy(net(v), Y).sum(), leaf)
    assert_close(found, expected, rtol=0, atol=1e-13)
    assert not torch.allclose(found, gradient(defense, x, Y), rtol=1e-6, atol=0)


class Affine(nn.Module):
    """s(x) = w x + b for every pixel."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.w * x + self.b


def test_denoising_score_matching_finds_the_score_of_a_gaussian():
    """Pixels with mean 1/2 and variance v, and noise of level s: w = -s / (v + s^2).

    E[n | x + s n] = s (x + s n - 1/2) / (v + s^2).
    """
    pixels = 0.5 + 0.1 * Keys.of(2, torch.arange(256)).normal((1, 4, 4), torch.float64)
    raw = AdaptiveDenoising(smooth_net(), Affine().eval())
    fitted = raw.fit(pixels, levels=(0.2, 0.2), epochs=80, batch_size=128, learning_rate=0.1).score
    expected = -0.2 / (0.1**2 + 0.2**2)
    # 256 x 16 pixels with new noise in each epoch; Adam's last steps vary by a few percent.
    assert fitted.w.item() == pytest.approx(expected, rel=0.08)
    assert -fitted.b.item() / fitted.w.item() == pytest.approx(0.5, abs=0.05)
    assert raw.score.w.item() == 0
    assert not fitted.training


def test_a_fitted_score_network_denoises():
    x = images(64)
    raw = AdaptiveDenoising(smooth_net(), score_net(), noise=0.2, runs=1, coupled=False)
    fitted = raw.fit(x, levels=(0.05, 0.5), epochs=15, batch_size=16, learning_rate=5e-3)

    def remaining(defense):
        return (states(defense, x, context(64))[-1] - x).square().mean().item()

    assert remaining(fitted) < 0.9 * (0.2**2)
    assert remaining(fitted) < remaining(raw)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="runs >= 1"):
        AdaptiveDenoising(smooth_net(), score_net(), runs=0)
    with pytest.raises(ValueError, match="the score network is in training mode"):
        AdaptiveDenoising(smooth_net(), score_net().train())
    with pytest.raises(ValueError, match=r"0 < low <= high, got \(0.0, 1.0\)"):
        AdaptiveDenoising(smooth_net(), score_net()).fit(images(2), levels=(0.0, 1.0))
    with pytest.raises(FloatingPointError, match="not finite in epoch 1"):
        AdaptiveDenoising(smooth_net(), score_net()).fit(images(2) * torch.nan, epochs=1)
