"""Properties of all purifiers: views, independence of examples, and gradients by every rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.memory import peak_bytes
from tests.probing import probe_target
from tests.zoo.adaptive.purifiers import (
    CLASSES,
    COUPLED,
    INDEPENDENT,
    SMOOTH,
    context,
    gradient,
    images,
    smooth_net,
)
from torch import nn
from torch.testing import assert_close

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import TargetError
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import BPDA, Backprop, Checkpointed, Exact
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import SOAP, HedgeDefense
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5
Y = torch.tensor([0, 1, 2, 3, 0])
ALL = {**INDEPENDENT, **COUPLED}
all_purifiers = pytest.mark.parametrize("build", ALL.values(), ids=ALL)
independent_purifiers = pytest.mark.parametrize("build", INDEPENDENT.values(), ids=INDEPENDENT)
smooth_purifiers = pytest.mark.parametrize("build", SMOOTH.values(), ids=SMOOTH)


@all_purifiers
def test_without_steps_the_purifier_equals_the_network(build):
    net = smooth_net()
    x = images(N)
    defense = build(net, 0)
    trace = defense.trace(x, context(N))
    assert trace.names == ("purify/0",)
    assert_close(trace.last, net(x), **EXACT)
    assert (defense.coupled, defense.random, defense.static) == (False, False, net)


@all_purifiers
def test_the_first_view_is_the_network_and_every_step_changes_the_logits(build):
    net = smooth_net()
    x = images(N)
    trace = build(net, 3).trace(x, context(N))
    assert trace.names == tuple(f"purify/{t}" for t in range(4))
    assert_close(trace.views[0].logits, net(x), **EXACT)
    assert all(
        not torch.allclose(a.logits.log_softmax(1), b.logits.log_softmax(1))
        for a, b in pairwise(trace.views)
    )


@all_purifiers
def test_a_view_that_is_not_kept_is_not_computed(build):
    net = smooth_net()
    x = images(N)
    passes = []
    defense = build(net, 3)
    net[-1].register_forward_hook(lambda *_: passes.append(1))
    partial = defense.trace(x, context(N, keep=frozenset({"purify/2"})))
    few = len(passes)
    full = defense.trace(x, context(N))
    assert partial.names == ("purify/2", "purify/3")
    assert_close(partial.last, full.last, **EXACT)
    # The full trace has four views. AntiAdversary computes the first one anyway, for its label.
    assert len(passes) - few > few


@all_purifiers
def test_the_output_is_equal_with_and_without_a_graph_and_parameters_get_no_gradient(build):
    net = smooth_net()
    x = images(N)
    defense = build(net, 3)
    with torch.no_grad():
        without_graph = defense.trace(x, context(N)).logits
    with_graph = defense.trace(x.clone().requires_grad_(), context(N)).logits
    assert_close(with_graph, without_graph, **EXACT)
    assert not without_graph.requires_grad
    assert with_graph.requires_grad
    assert all(p.grad is None for p in net.parameters())


@independent_purifiers
def test_the_output_of_an_example_does_not_depend_on_batch_or_order(build):
    """Kernels may sum in another order for another batch size: 1e-12 in double precision."""
    defense = build(smooth_net(), 4)
    x = images(N)
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


@pytest.mark.slow
@all_purifiers
def test_the_audit_confirms_the_declared_properties(build):
    defense = build(smooth_net(), 4)
    x = images(16)
    assert probe_target(defense, x, torch.arange(16) % CLASSES, Linf(0.05)).defense is defense
    outputs = [defense.respond(x, Context(Keys.of(seed, torch.arange(16)))) for seed in (0, 1)]
    assert torch.equal(*outputs) != defense.random


@pytest.mark.slow
@pytest.mark.parametrize("build", COUPLED.values(), ids=COUPLED)
def test_released_versions_couple_the_batch_and_a_false_declaration_is_detected(build):
    # Images of very different contrast get different radii and numbers of steps.
    net = smooth_net()
    x = images(16) * torch.linspace(0.02, 1.4, 16, dtype=torch.float64).view(-1, 1, 1, 1)
    defense = build(net, 6)
    y = torch.arange(16) % CLASSES
    assert defense.unit == "batch"
    probe_target(defense, x, y, Linf(0.05))
    with pytest.raises(TargetError, match="declares that rows are independent"):
        probe_target(DeclaredIndependent(defense), x, y, Linf(0.05))


class DeclaredIndependent(Defense):
    """Wrapper that declares the rows of a defense to be independent."""

    def __init__(self, inner):
        self.inner = inner
        self.random = inner.random

    def trace(self, x, ctx):
        return self.inner.trace(x, ctx)


@smooth_purifiers
def test_exact_gradients_through_all_steps_equal_finite_differences(build):
    """Errors of central differences with h = 1e-5: h^2 times a third derivative, and 1e-16 / h.

    Together they are about 1e-8.
    """
    defense = build(smooth_net(), 3)
    x = images(2)
    h = 1e-5
    found = gradient(defense, x, Y[:2])
    expected = torch.zeros_like(x)
    for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        offset = torch.zeros_like(x)
        offset[tuple(index)] = h
        up, down = (
            cross_entropy(defense.respond(x + sign * offset, context(2)), Y[:2]).sum()
            for sign in (1, -1)
        )
        expected[tuple(index)] = (up - down) / (2 * h)
    assert_close(found, expected, rtol=1e-6, atol=2e-8)
    bpda = gradient(defense, x, Y[:2], rules={"purify": BPDA()})
    assert not torch.allclose(found, bpda, rtol=1e-3, atol=0)


@independent_purifiers
def test_the_exact_gradient_of_signed_steps_equals_finite_differences(build):
    """Signs are locally constant, so a step passes the gradient except where the box clips it."""
    defense = build(smooth_net(), 3)
    x = images(2)
    h = 1e-6
    found = gradient(defense, x, Y[:2])
    direction = Keys.of(5, torch.arange(2)).normal((1, 4, 4), torch.float64)
    up, down = (
        cross_entropy(defense.respond(x + sign * h * direction, context(2)), Y[:2]).sum()
        for sign in (1, -1)
    )
    assert_close((found * direction).sum(), (up - down) / (2 * h), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "build",
    [INDEPENDENT[k] for k in INDEPENDENT if "denoising" not in k],
    ids=[k for k in INDEPENDENT if "denoising" not in k],
)
def test_identity_bpda_is_the_gradient_at_the_purified_point(build):
    net = smooth_net()
    x = images(N)
    inputs = []
    defense = build(net, 4)
    net.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    found = gradient(defense, x, Y, rules={"purify": BPDA()})
    purified = inputs[-1].clone().requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(net(purified), Y).sum(), purified)
    assert_close(found, expected, rtol=0, atol=1e-14)
    assert not torch.equal(purified, x)


@pytest.mark.parametrize(
    "build",
    [*ALL.values(), *SMOOTH.values()],
    ids=[*ALL, *(f"{name}, second derivatives" for name in SMOOTH)],
)
def test_checkpointed_gradients_equal_exact_ones(build):
    """Recomputed steps use the random keys of the first run."""
    defense = build(smooth_net(), 4)
    x = images(N)
    exact = gradient(defense, x, Y)
    checkpointed = gradient(defense, x, Y, rules={"purify": Checkpointed()})
    assert_close(checkpointed, exact, rtol=0, atol=1e-13)


@smooth_purifiers
def test_forty_checkpointed_steps_take_the_memory_of_less_than_three(build):
    """The peak is below 2.5 times that of one exact step; forty exact steps take more than 10."""
    x = images(4)
    y = torch.arange(4)

    def peak(steps, rule):
        objective = AttackObjective(
            [build(smooth_net(width=12), steps)],
            y,
            cross_entropy,
            rules={"purify": rule},
            keep=frozenset({f"purify/{steps}"}),
        )
        keys = Keys.of(0, torch.arange(4))
        return peak_bytes(lambda: Backprop().value_and_grad(objective, x, keys))

    one = peak(1, Exact())
    assert peak(40, Checkpointed()) <= 2.5 * one
    assert peak(40, Exact()) >= 10 * one


def test_trajectory_bpda_is_the_mean_of_gradients_at_the_iterates():
    """Attack on SOAP (Croce et al. 2022, Sec. 3.5): identity BPDA, averaged over the iterates."""
    net = smooth_net()
    x = images(N)
    expected = []
    defense = SOAP(net, steps=3)
    names = frozenset(f"purify/{t}" for t in (1, 2, 3))
    found = gradient(defense, x, Y, rules={"purify": BPDA()}, aim=mean_of_losses, keep=names)
    for t in (1, 2, 3):
        radius = defense.select_radius(x)
        v = x
        for _ in range(t):
            v = defense.ascent(lambda u: -defense.task.loss(net, u), v, x, radius)
        v = v.detach().requires_grad_()
        expected.append(torch.autograd.grad(cross_entropy(net(v), Y).sum(), v)[0])
    assert_close(found, torch.stack(expected).mean(0), rtol=0, atol=1e-14)


def test_the_input_gradient_is_computed_with_and_without_a_graph():
    x = images(2)
    with torch.no_grad():
        grad = input_gradient(lambda v: v.square().flatten(1).sum(1), x)
    assert_close(grad, 2 * x, **EXACT)
    assert not grad.requires_grad
    leaf = x.clone().requires_grad_()
    first = input_gradient(lambda v: (v**3).flatten(1).sum(1), leaf)
    assert_close(torch.autograd.grad(first.sum(), leaf)[0], 6 * x, rtol=1e-14, atol=0)
    assert not input_gradient(
        lambda v: (v**3).flatten(1).sum(1), leaf, differentiable=False
    ).requires_grad


def test_a_network_in_training_mode_and_negative_steps_raise():
    with pytest.raises(ValueError, match="HedgeDefense: the network is in training mode"):
        HedgeDefense(nn.Flatten().train())
    with pytest.raises(ValueError, match="SOAP needs steps >= 0, got steps=-1"):
        SOAP(smooth_net(), steps=-1)
