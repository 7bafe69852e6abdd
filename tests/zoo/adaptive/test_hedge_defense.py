"""Hedge defence: signed ascent on the cross-entropy to all classes from a random start."""

from __future__ import annotations

import torch
from purifiers import CLASSES, context, gradient, pictures, smooth_net
from torch.nn import functional
from torch.testing import assert_close

from saddlepoint.attack.aim import mean_of_losses
from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.space import Linf
from saddlepoint.coins import Coins
from saddlepoint.defense import Plain
from saddlepoint.game import Direct, Threat, Turn
from saddlepoint.gradients import BPDA
from saddlepoint.zoo.adaptive import SOAP, HedgeDefense

N = 5
Y = torch.tensor([0, 1, 2, 3, 0])


def to_all_classes(net, x):
    return sum(functional.cross_entropy(net(x), torch.full((len(x),), k), reduction="none") for k in range(CLASSES))


def test_the_objective_is_the_sum_of_cross_entropies_to_all_classes():
    net, x = smooth_net(), pictures(N)
    assert_close(HedgeDefense(net).hedge(x), to_all_classes(net, x), rtol=1e-13, atol=0)


def test_the_answer_is_that_of_equation_3():
    """Start uniform in the ball, then x <- clip(x + 4/255 sign(grad)), 20 times, at the paper's values."""
    net, x = smooth_net(), pictures(N) - 0.3  # some pixels lie at the wall
    noise = Coins.of(0, torch.arange(N)).fold(1).fold(1).uniform((1, 4, 4), torch.float64)  # the first draw inside the first step
    v = x + 8 / 255 * (2 * noise - 1)
    for _ in range(20):
        v = v.detach().requires_grad_()
        (grad,) = torch.autograd.grad(to_all_classes(net, v).sum(), v)
        delta = (v - x + 4 / 255 * grad.sign()).clamp(-8 / 255, 8 / 255)
        v = (x + delta).clamp(0, 1)
    assert_close(HedgeDefense(net).respond(x, context(N)), net(v), rtol=0, atol=1e-12)


def test_every_short_step_raises_the_objective():
    """Along the sign of the gradient a smooth function rises by step ||grad||_1, up to the square of the step."""
    net, x = smooth_net(), pictures(N)
    trace = HedgeDefense(net, step_size=1e-4).trace(x, context(N))
    value = CLASSES * trace.logits.logsumexp(2) - trace.logits.sum(2)  # [V, N]
    assert (value[2:] > value[1:-1]).all()  # the first step holds the random start


def test_aiming_at_iterates_that_never_move_is_bpda_is_the_attack_on_the_net():
    net, x = smooth_net(), pictures(N)
    still = SOAP(net, step_size=0.0)
    everywhere = {"rules": {"purify": BPDA()}, "aim": mean_of_losses}
    assert_close(gradient(still, x, Y, **everywhere), gradient(Plain(net), x, Y), rtol=0, atol=1e-15)
    apgd = Direct("apgd", APGD(10), loss=cross_entropy)
    through = Direct("apgd", APGD(10), loss=cross_entropy, **everywhere)
    peaks = [
        adversary.move(Turn.open(Threat(Linf(0.1)), torch.arange(N), 0), defense, x, Y).peak
        for adversary, defense in ((apgd, Plain(net)), (through, still))
    ]
    assert_close(*peaks, rtol=0, atol=0)
