"""What all purifiers owe an attacker: the net without steps, rows that do not meddle, and gradients by any rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.zoo.adaptive.purifiers import (
    CLASSES,
    COUPLED,
    MAKES,
    SMOOTH,
    Memory,
    context,
    gradient,
    pictures,
    smooth_net,
)
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.target.check import TargetError, check
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import BPDA, Backprop, Checkpointed, Exact
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import SOAP, HedgeDefense
from saddlepoint.zoo.adaptive.descent import slope

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5
Y = torch.tensor([0, 1, 2, 3, 0])
ALL = {**MAKES, **COUPLED}
everyone = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
uncoupled = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
differentiable = pytest.mark.parametrize("make", SMOOTH.values(), ids=SMOOTH)


@everyone
def test_without_steps_this_is_the_net(make):
    net = smooth_net()
    x = pictures(N)
    defense = make(net, 0)
    trace = defense.trace(x, context(N))
    assert trace.names == ("purify/0",)
    assert_close(trace.last, net(x), **EXACT)
    assert (defense.coupled, defense.random, defense.static) == (False, False, net)


@everyone
def test_the_first_view_is_the_net_and_steps_move_the_others(make):
    net = smooth_net()
    x = pictures(N)
    trace = make(net, 3).trace(x, context(N))
    assert trace.names == tuple(f"purify/{t}" for t in range(4))
    assert_close(trace.views[0].logits, net(x), **EXACT)
    assert all(
        not torch.allclose(a.logits.log_softmax(1), b.logits.log_softmax(1))
        for a, b in pairwise(trace.views)
    )


@everyone
def test_a_view_that_nobody_reads_is_not_computed(make):
    net = smooth_net()
    x = pictures(N)
    passes = []
    defense = make(net, 3)
    net[-1].register_forward_hook(lambda *_: passes.append(1))
    alone = defense.trace(x, context(N, keep=frozenset({"purify/2"})))
    few = len(passes)
    whole = defense.trace(x, context(N))
    assert alone.names == ("purify/2", "purify/3")
    assert_close(alone.last, whole.last, **EXACT)
    assert (
        len(passes) - few > few
    )  # all four views; of AntiAdversary the first is known from its label


@everyone
def test_the_answer_is_the_same_with_and_without_a_graph_and_no_parameter_receives_a_gradient(make):
    net = smooth_net()
    x = pictures(N)
    defense = make(net, 3)
    with torch.no_grad():
        quiet = defense.trace(x, context(N)).logits
    recorded = defense.trace(x.clone().requires_grad_(), context(N)).logits
    assert_close(recorded, quiet, **EXACT)
    assert not quiet.requires_grad
    assert recorded.requires_grad
    assert all(p.grad is None for p in net.parameters())


@uncoupled
def test_a_row_answers_the_same_alone_and_in_any_order(make):
    """Kernels may add up in another order for another batch size: 1e-12 in double precision."""
    defense = make(smooth_net(), 4)
    x = pictures(N)
    together = defense.respond(x, context(N))
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = defense.respond(x[order], Context(Keys.of(0, order)))
    assert_close(shuffled, together[order], rtol=0, atol=1e-12)
    for k in range(N):
        assert_close(
            defense.respond(x[k : k + 1], Context(Keys.of(0, torch.tensor([k])))),
            together[k : k + 1],
            rtol=0,
            atol=1e-12,
        )


@everyone
def test_what_is_declared_is_what_an_audit_measures(make):
    defense = make(smooth_net(), 4)
    x = pictures(16)
    assert check(defense, x, torch.arange(16) % CLASSES, Linf(0.05)).defense is defense
    other = [defense.respond(x, Context(Keys.of(seed, torch.arange(16)))) for seed in (0, 1)]
    assert torch.equal(*other) != defense.random


@pytest.mark.parametrize("make", COUPLED.values(), ids=COUPLED)
def test_the_released_versions_couple_their_batch_and_may_not_deny_it(make):
    # Pictures of very different contrast want different radii, and steps of different number.
    net = smooth_net()
    x = pictures(16) * torch.linspace(0.02, 1.4, 16, dtype=torch.float64).view(-1, 1, 1, 1)
    defense = make(net, 6)
    y = torch.arange(16) % CLASSES
    assert defense.unit == "batch"
    check(defense, x, y, Linf(0.05))
    with pytest.raises(TargetError, match="declares that rows are independent"):
        check(Denying(defense), x, y, Linf(0.05))


class Denying(Defense):
    """A defense that says that its rows are independent."""

    def __init__(self, inner):
        self.inner = inner
        self.random = inner.random

    def trace(self, x, ctx):
        return self.inner.trace(x, ctx)


@differentiable
def test_exact_gradients_through_all_steps_are_finite_differences(make):
    """Central differences of h = 1e-5 are off by h^2 times a third derivative and by 1e-16 / h: 1e-8 here."""
    defense = make(smooth_net(), 3)
    x = pictures(2)
    h = 1e-5
    got = gradient(defense, x, Y[:2])
    want = torch.zeros_like(x)
    for place in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        moved = torch.zeros_like(x)
        moved[tuple(place)] = h
        up, down = (
            cross_entropy(defense.respond(x + sign * moved, context(2)), Y[:2]).sum()
            for sign in (1, -1)
        )
        want[tuple(place)] = (up - down) / (2 * h)
    assert_close(got, want, rtol=1e-6, atol=2e-8)
    assert not torch.allclose(
        got, gradient(defense, x, Y[:2], rules={"purify": BPDA()}), rtol=1e-3, atol=0
    )


@uncoupled
def test_the_exact_gradient_of_signed_steps_is_that_of_the_pieces(make):
    """Signs do not move with x, so the gradient passes a step as it is, but where the box cuts it off."""
    defense = make(smooth_net(), 3)
    x = pictures(2)
    h = 1e-6
    got = gradient(defense, x, Y[:2])
    along = Keys.of(5, torch.arange(2)).normal((1, 4, 4), torch.float64)
    up, down = (
        cross_entropy(defense.respond(x + sign * h * along, context(2)), Y[:2]).sum()
        for sign in (1, -1)
    )
    assert_close((got * along).sum(), (up - down) / (2 * h), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "make",
    [MAKES[k] for k in MAKES if "denoising" not in k],
    ids=[k for k in MAKES if "denoising" not in k],
)
def test_bpda_with_the_identity_is_the_gradient_at_the_purified_point(make):
    net = smooth_net()
    x = pictures(N)
    seen = []
    defense = make(net, 4)
    net.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    got = gradient(defense, x, Y, rules={"purify": BPDA()})
    at = seen[-1].clone().requires_grad_()
    (want,) = torch.autograd.grad(cross_entropy(net(at), Y).sum(), at)
    assert_close(got, want, rtol=0, atol=1e-14)
    assert not torch.equal(at, x)


@everyone
def test_checkpointed_is_exact_with_the_same_coins(make):
    defense = make(smooth_net(), 4)
    x = pictures(N)
    exact = gradient(defense, x, Y)
    assert_close(
        gradient(defense, x, Y, rules={"purify": Checkpointed()}), exact, rtol=0, atol=1e-13
    )


@differentiable
def test_checkpointed_is_exact_through_second_derivatives(make):
    defense = make(smooth_net(), 4)
    x = pictures(N)
    exact = gradient(defense, x, Y)
    assert_close(
        gradient(defense, x, Y, rules={"purify": Checkpointed()}), exact, rtol=0, atol=1e-13
    )


@differentiable
def test_forty_checkpointed_steps_take_the_memory_of_two(make):
    """Peak of live bytes in units of what one exact step takes: below 2.5, where forty exact steps take above 10."""
    x = pictures(4)
    y = torch.arange(4)

    def max_loss_point(steps, rule):
        objective = AttackObjective(
            [make(smooth_net(width=12), steps)],
            y,
            cross_entropy,
            rules={"purify": rule},
            keep=frozenset({f"purify/{steps}"}),
        )
        with Memory() as memory:
            Backprop().value_and_grad(objective, x, Keys.of(0, torch.arange(4)))
        return memory.max_loss_point

    one = max_loss_point(1, Exact())
    assert max_loss_point(40, Checkpointed()) <= 2.5 * one
    assert max_loss_point(40, Exact()) >= 10 * one


def test_the_mean_over_the_trajectory_is_the_mean_of_gradients_at_the_iterates():
    """The attack on SOAP of Croce et al. 2022, Sec. 3.5: identity BPDA, and gradients averaged over the iterates."""
    net = smooth_net()
    x = pictures(N)
    seen = []
    defense = SOAP(net, steps=3)
    names = frozenset(f"purify/{t}" for t in (1, 2, 3))
    got = gradient(defense, x, Y, rules={"purify": BPDA()}, aim=mean_of_losses, keep=names)
    for t in (1, 2, 3):
        steps = SOAP(net, steps=3)
        radius = steps.picked(x)
        v = x
        for _ in range(t):
            v = steps._step(v, x, radius)
        at = v.detach().requires_grad_()
        seen.append(torch.autograd.grad(cross_entropy(net(at), Y).sum(), at)[0])
    assert_close(got, torch.stack(seen).mean(0), rtol=0, atol=1e-14)


def test_a_slope_is_taken_also_where_no_graph_is_recorded():
    x = pictures(2)
    with torch.no_grad():
        grad = slope(lambda v: v.square().flatten(1).sum(1), x)
    assert_close(grad, 2 * x, **EXACT)
    assert not grad.requires_grad
    at = x.clone().requires_grad_()
    again = slope(lambda v: (v**3).flatten(1).sum(1), at)
    assert_close(torch.autograd.grad(again.sum(), at)[0], 6 * x, rtol=1e-14, atol=0)
    assert not slope(lambda v: (v**3).flatten(1).sum(1), at, recorded=False).requires_grad


def test_a_net_in_training_mode_and_fewer_than_no_steps_are_refused():
    with pytest.raises(ValueError, match="HedgeDefense was given a net in training mode"):
        HedgeDefense(nn.Flatten().train())
    with pytest.raises(ValueError, match="SOAP needs steps >= 0, got steps=-1"):
        SOAP(smooth_net(), steps=-1)
