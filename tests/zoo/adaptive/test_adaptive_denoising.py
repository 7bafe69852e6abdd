"""Adaptive denoising: noise, then steps along a score whose length the score itself decides."""

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


class Linear(nn.Module):
    """s(x) = -K (x - 1/2), with K one number or one per row."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.eval()

    def forward(self, x):
        return -torch.as_tensor(self.k, dtype=x.dtype).view(-1, 1, 1, 1)[: len(x)] * (x - 0.5)


def states(defense, x, ctx=None):
    """The pictures that one run goes through."""
    return list(defense._run(x, ctx or context(len(x))))


def squeezed(x):
    return 255 / 256 * x + 1 / 512


def stretched(x):
    return (256 / 255 * x - 1 / 510).clamp(0, 1)


def test_the_stretched_grid_is_the_picture_again():
    x = images(N)
    assert_close(stretched(squeezed(x)), x, rtol=1e-14, atol=0)


def test_a_linear_score_moves_by_the_same_share_whatever_its_strength():
    """c = 1 - 1e-3 K, so a = 0.05 / K, and every step goes 5 % of the way to the middle; K = 10, a = 0.005."""
    defense = AdaptiveDenoising(smooth_net(), Linear(10.0), noise=0.0, steps=3, runs=1)
    x = images(N)
    got = states(defense, x)
    v = squeezed(x)
    for t in range(3):
        v = stretched(v + 0.05 * (0.5 - v))
        assert_close(got[t + 1], v, rtol=1e-12, atol=0)


def test_steps_are_clipped_and_stop_where_they_are_short():
    """a = 0.05 / K within [1e-5, 0.1]: K = 0.1 asks for 0.5 and has 0.1; K = 100 asks for 5e-4, which ends its run."""
    defense = AdaptiveDenoising(
        smooth_net(), Linear([0.1, 100.0]), noise=0.0, steps=2, runs=1, coupled=False
    )
    x = images(2)
    first, second = states(defense, x)[1:]
    v = squeezed(x)
    assert_close(first[0], stretched(v + 0.01 * (0.5 - v))[0], rtol=1e-12, atol=0)
    assert_close(first[1], v[1], **EXACT)
    assert_close(second[1], v[1], **EXACT)
    assert (second[0] != first[0]).any()


def test_in_the_released_version_a_row_that_has_ended_is_stretched_along():
    x = images(2)
    coupled = AdaptiveDenoising(smooth_net(), Linear([0.1, 100.0]), noise=0.0, steps=2, runs=1)
    end = states(coupled, x)[-1]
    assert_close(end[1], stretched(stretched(squeezed(x)))[1], rtol=1e-14, atol=0)
    alone = AdaptiveDenoising(smooth_net(), Linear(100.0), noise=0.0, steps=2, runs=1)
    assert_close(
        states(alone, x[1:])[-1], squeezed(x)[1:], **EXACT
    )  # nobody goes on, so nobody is stretched


def test_without_a_score_nothing_moves_and_gradients_are_finite():
    defense = AdaptiveDenoising(smooth_net(), Linear(0.0), noise=0.1, coupled=False)
    x = images(N)
    assert_close(states(defense, x)[1], states(defense, x)[-1], **EXACT)
    assert gradient(defense, x, Y).isfinite().all()
    assert defense.respond(x, context(N)).isfinite().all()


def test_a_score_that_grows_along_itself_ends_the_run():
    """K < 0: c > 1 asks for a negative step; the smallest is taken, and that is where a run stops."""
    defense = AdaptiveDenoising(smooth_net(), Linear(-3.0), noise=0.0, runs=1)
    x = images(N)
    assert_close(states(defense, x)[-1], squeezed(x), **EXACT)


def test_the_answer_is_that_of_equations_8_and_9():
    net = smooth_net()
    score = score_net()
    x = images(N)
    defense = AdaptiveDenoising(net, score, runs=3, steps=4, coupled=False)
    chances = []
    for run in range(3):
        # The draw inside `noise` inside this run's first step, and runs take their steps in turn.
        n = (
            Keys.of(0, torch.arange(N))
            .fold_in(run + 1)
            .fold_in(1)
            .fold_in(1)
            .normal((1, 4, 4), torch.float64)
        )
        v = squeezed((x + 0.25 * n).clamp(0, 1))
        going = torch.ones(N, dtype=torch.bool)
        for _ in range(4):
            g = score(v)
            ahead = score(v + 1e-3 * score(v))
            c = (g * ahead).sum((1, 2, 3)) / (g * g).sum((1, 2, 3))
            a = (0.05 * 1e-3 / (1 - c)).clamp(1e-5, 0.1)
            going = going & (a > 1e-3)
            v = torch.where(going.view(-1, 1, 1, 1), stretched(v + a.view(-1, 1, 1, 1) * g), v)
        chances.append(net(v).softmax(1))
    answered = defense.respond(x, context(N))
    assert_close(answered.exp(), torch.stack(chances).mean(0), rtol=1e-10, atol=0)
    assert_close(answered.exp().sum(1), torch.ones(N, dtype=torch.float64), rtol=1e-12, atol=0)


def test_more_runs_answer_more_alike():
    """The variance of a mean of S draws is 1/S: over 30 draws, of 1 and of 9 runs, far apart."""
    net = smooth_net()
    x = images(2)
    with torch.no_grad():
        net[5].weight.mul_(5)

    def spread(runs):
        defense = AdaptiveDenoising(net, score_net(), runs=runs, steps=1)
        draws = [
            defense.respond(x, Context(Keys.of(seed, torch.arange(2)))).exp() for seed in range(30)
        ]
        return torch.stack(draws).var(0).mean()

    assert spread(9) < spread(1) / 3


def test_step_size_and_noise_can_be_taken_as_constants():
    """The attack of Croce et al. 2022, Sec. B.9: the gradient of steps whose lengths and starting noise are given."""
    net = smooth_net()
    score = score_net()
    x = images(N)
    defense = AdaptiveDenoising(net, score, runs=1, steps=3, noise=0.3, stop=0.0, coupled=False)
    got = gradient(defense, x, Y, rules={"noise": BPDA(), "step size": BPDA(constant)})
    n = (
        Keys.of(0, torch.arange(N))
        .fold_in(1)
        .fold_in(1)
        .fold_in(1)
        .normal((1, 4, 4), torch.float64)
    )
    at = x.clone().requires_grad_()
    v = squeezed(at + ((x + 0.3 * n).clamp(0, 1) - x))
    for _ in range(3):
        g = score(v)
        a = defense._step_size(g, v).detach()
        v = stretched(v + a.view(-1, 1, 1, 1) * g)
    (want,) = torch.autograd.grad(cross_entropy(net(v), Y).sum(), at)
    assert_close(got, want, rtol=0, atol=1e-13)
    assert not torch.allclose(got, gradient(defense, x, Y), rtol=1e-6, atol=0)


class Affine(nn.Module):
    """s(x) = w x + b for every pixel."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.w * x + self.b


def test_denoising_score_matching_finds_the_score_of_a_gaussian():
    """Pixels of mean 1/2 and variance v with noise of level s: E[n | x + s n] = s (x - 1/2) / (v + s^2), so w = -s / (v + s^2)."""
    pixels = 0.5 + 0.1 * Keys.of(2, torch.arange(256)).normal((1, 4, 4), torch.float64)
    raw = AdaptiveDenoising(smooth_net(), Affine().eval())
    fitted = raw.fit(pixels, levels=(0.2, 0.2), epochs=80, batch_size=128, learning_rate=0.1).score
    want = -0.2 / (0.1**2 + 0.2**2)
    # 256 x 16 pixels, the noise drawn anew in each epoch; Adam's last steps scatter by a few percent.
    assert fitted.w.item() == pytest.approx(want, rel=0.08)
    assert -fitted.b.item() / fitted.w.item() == pytest.approx(0.5, abs=0.05)
    assert raw.score.w.item() == 0
    assert not fitted.training


def test_a_score_network_learns_to_see_noise_and_denoises():
    x = images(64)
    raw = AdaptiveDenoising(smooth_net(), score_net(), noise=0.2, runs=1, coupled=False)
    fitted = raw.fit(x, levels=(0.05, 0.5), epochs=15, batch_size=16, learning_rate=5e-3)

    def left(defense):
        return (states(defense, x, context(64))[-1] - x).square().mean().item()

    assert left(fitted) < 0.9 * (0.2**2)
    assert left(fitted) < left(raw)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="runs >= 1"):
        AdaptiveDenoising(smooth_net(), score_net(), runs=0)
    with pytest.raises(ValueError, match="score network in training mode"):
        AdaptiveDenoising(smooth_net(), score_net().train())
    with pytest.raises(ValueError, match=r"0 < low <= high, got \(0.0, 1.0\)"):
        AdaptiveDenoising(smooth_net(), score_net()).fit(images(2), levels=(0.0, 1.0))
    with pytest.raises(FloatingPointError, match="not a finite number in epoch 1"):
        AdaptiveDenoising(smooth_net(), score_net()).fit(images(2) * torch.nan, epochs=1)
