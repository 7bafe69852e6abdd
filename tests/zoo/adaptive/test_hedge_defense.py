"""Hedge defense: signed ascent on the cross-entropy to all classes from a random start."""

from __future__ import annotations

import torch
from tests.zoo.adaptive.purifiers import CLASSES, context, gradient, images, smooth_net
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import AttackContext, Direct, Threat
from saddlepoint.gradients import BPDA
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import SOAP, HedgeDefense

N = 5
Y = torch.tensor([0, 1, 2, 3, 0])


def summed_cross_entropy(net, x):
    """Return sum_k CE(f(x), k), [N]."""
    return sum(
        functional.cross_entropy(net(x), torch.full((len(x),), k), reduction="none")
        for k in range(CLASSES)
    )


def test_the_objective_is_the_sum_of_cross_entropies_to_all_classes():
    net = smooth_net()
    x = images(N)
    assert_close(HedgeDefense(net).hedge(x), summed_cross_entropy(net, x), rtol=1e-13, atol=0)


def test_the_output_is_that_of_equation_3():
    """Uniform start in the ball, then 20 times x <- clip(x + 4/255 sign(grad))."""
    net = smooth_net()
    x = images(N) - 0.3  # some pixels are near 0, where the box clips
    keys = Keys.of(0, torch.arange(N)).fold_in(1).fold_in(1)  # first draw of the first step
    noise = keys.uniform((1, 4, 4), torch.float64)
    v = x + 8 / 255 * (2 * noise - 1)
    for _ in range(20):
        v = v.detach().requires_grad_()
        (grad,) = torch.autograd.grad(summed_cross_entropy(net, v).sum(), v)
        delta = (v - x + 4 / 255 * grad.sign()).clamp(-8 / 255, 8 / 255)
        v = (x + delta).clamp(0, 1)
    assert_close(HedgeDefense(net).respond(x, context(N)), net(v), rtol=0, atol=1e-12)


def test_every_short_step_increases_the_objective():
    """A signed step increases a smooth function by step ||grad||_1 + O(step^2)."""
    net = smooth_net()
    x = images(N)
    trace = HedgeDefense(net, step_size=1e-4).trace(x, context(N))
    value = CLASSES * trace.logits.logsumexp(2) - trace.logits.sum(2)  # [V, N]
    assert (value[2:] > value[1:-1]).all()  # the first step includes the random start


def test_trajectory_bpda_on_a_purifier_that_never_moves_is_the_attack_on_the_network():
    net = smooth_net()
    x = images(N)
    still = SOAP(net, step_size=0.0)
    options = {"rules": {"purify": BPDA()}, "aim": mean_of_losses}
    assert_close(gradient(still, x, Y, **options), gradient(Plain(net), x, Y), rtol=0, atol=1e-15)
    apgd = Direct("apgd", APGD(10), loss=cross_entropy)
    through = Direct("apgd", APGD(10), loss=cross_entropy, **options)
    points = [
        adversary.move(
            AttackContext.open(Threat(Linf(0.1)), torch.arange(N), 0), defense, x, Y
        ).max_loss_point
        for adversary, defense in ((apgd, Plain(net)), (through, still))
    ]
    assert_close(*points, rtol=0, atol=0)
