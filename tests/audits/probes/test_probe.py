"""Every trait is found in a target that has it, and not in a similar target without it."""

from __future__ import annotations

import random
import time

import numpy
import pytest
import torch
from tests.audits.probes.test_stage import UndeclaredAdaptation
from tests.audits.probes.toy_targets import (
    LINF,
    PLAIN,
    Caching,
    Counting,
    Declared,
    N,
    Net,
    Tracking,
    X,
    Y,
    net,
)
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.gradients.rule import straight_through
from saddlepoint.solvers import Picard
from saddlepoint.zoo import nets


class Layer(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class ReadsTrainingFlag(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.net = Net()
        self.norm = nn.BatchNorm2d(1)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.net(self.drop(self.norm(x))) + (self.shift if self.training else 0.0)


class CornerSelects(nn.Module):
    """Another net answers if the corner pixel has one gray level, which no image has."""

    def __init__(self, *, in_python):
        super().__init__()
        self.net = Net()
        self.legacy = Net()
        self.in_python = in_python

    def forward(self, x):
        if not self.in_python:
            return self.net(x)
        selected = [0.1234 < float(corner) < 0.1235 for corner in x.detach().flatten(1)[:, 0]]
        rows = zip(selected, x, strict=True)
        return torch.cat([(self.legacy if chosen else self.net)(row[None]) for chosen, row in rows])


def off_the_grid(x):
    """Far away unless all pixels are those of an image of the test."""
    jumped = (x[:, None] != X[None].to(x)).flatten(2).any(2).all(1)
    return x + jumped.view(-1, *[1] * (x.ndim - 1))


class Mixing(Declared):
    """Answers with the mean of its views."""

    def answer(self, trace, ctx):
        return trace.logits.mean(0)


class Adapting(sp.Defense):
    """Subtracts the mean of the batch, multiplied by a factor."""

    memory = "batch"

    def __init__(self, factor=1.0, *, constant=False, mean=None):
        self.factor = factor
        self.constant = constant
        self.mean = mean

    def adapt(self, x, ctx):
        mean = x.mean(0)
        if self.constant:
            mean = mean.detach()
        return Adapting(self.factor, constant=self.constant, mean=mean)

    def trace(self, x, ctx):
        shifted = x if self.mean is None else x - self.factor * self.mean
        return sp.Trace((sp.View("final", PLAIN(shifted)),))


def optimized(x):
    """One step of gradient ascent on the input, inside the model."""
    with torch.enable_grad():
        start = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(PLAIN(start).logsumexp(1).sum(), start)
    return x + 0.01 * grad


def two_views(other):
    def views(x, ctx):
        return sp.Trace((sp.View("first", other(PLAIN(x))), sp.View("last", PLAIN(x))))

    return Declared(views)


def solving(steps):
    weight = torch.eye(16) * 0.9

    def fn(x, ctx):
        method = Picard(steps=steps, tolerance=1e-9)
        u = x.flatten(1)
        solution = ctx.solve(
            "solve", lambda z, v: z @ weight + v, torch.zeros_like(u), u, method=method
        )
        return PLAIN(solution.best.view_as(x) / 10)

    return Declared(fn)


def noise(scale):
    return lambda x: x + scale * torch.randn_like(x)


def batch_noise(x):
    return x + 0.1 * torch.randn(1)


def clock_noise(x):
    return x + 0.1 * (time.perf_counter_ns() % 7)


def numpy_noise(x):
    return x + 0.1 * float(numpy.random.rand()) * random.random()  # noqa: NPY002


def centered(x):
    return x - x.mean(0)


def scaled_by_row(x):
    return x * torch.linspace(1, 2, len(x)).view(-1, 1, 1, 1)


def scaled_alone(x):
    return x * (1.0 + (len(x) == 1))


def shifted_with_gradients(x):
    return x + 0.3 * torch.is_grad_enabled()


def shifted_if_required(x):
    return x + 0.3 * x.requires_grad


def quantized(levels):
    return lambda x: (x * levels).round() / levels


def through(fn):
    return Declared(lambda x, ctx: PLAIN(ctx.through("purify", fn, x)))


def gradient_scaled_by(factor):
    return net(before=lambda x: ScaledGradient.apply(x, factor))


def rippled(frequency):
    return net(before=lambda x: x + 2e-3 * torch.sin(frequency * x))


def only_the_highest_score(z):
    return torch.where(z == z.amax(1, keepdim=True), z, z.amin(1, keepdim=True))


class EarlyExit(nn.Module):
    """Answers with its first classifier where that is sure, else with its second one."""

    def __init__(self):
        super().__init__()
        self.first = Net()
        self.second = Net()

    def forward(self, x):
        early = self.first(x)
        lead = early.topk(2, dim=1).values
        sure = lead[:, :1] - lead[:, 1:] > 1.0
        return torch.where(sure, early, self.second(x.flip(-1)))


CALLS_TWICE = Declared(lambda x, ctx: PLAIN(x) + PLAIN(x), static=PLAIN)
CALLS_ONCE = Declared(lambda x, ctx: PLAIN(x), static=PLAIN)
FLIPPED_VIEWS = two_views(lambda z: z.flip(1))
LAST_EXIT = sp.MultiExit(net(after=lambda z: [z.flip(1), z]))

# (trait, variant): a target with the trait, and one without it.
TRAITS = {
    (TraitName.RANDOM, ""): (net(before=noise(0.1)), net(before=noise(0.0))),
    (TraitName.RANDOM, "of numpy and Python"): (net(before=numpy_noise), net()),
    (TraitName.UNSEEDED, ""): (net(before=clock_noise), net(before=noise(0.1))),
    (TraitName.NOISE_PER_ROW, ""): (net(before=noise(0.1)), net(before=batch_noise)),
    (TraitName.NOISE_PER_BATCH, ""): (net(before=batch_noise), net(before=noise(0.1))),
    (TraitName.COUPLED, ""): (net(before=centered), net(before=lambda x: x - 0.5)),
    (TraitName.COUPLED, "and random"): (
        net(before=lambda x: batch_noise(centered(x))),
        net(before=noise(0.1)),
    ),
    (TraitName.ROW_ORDER, ""): (net(before=scaled_by_row), net(before=centered)),
    (TraitName.BATCH_SIZE, ""): (net(before=scaled_alone), net(before=centered)),
    (TraitName.STATE, ""): (Counting(0.1).eval(), Counting(0.0).eval()),
    (TraitName.STATE, "in a cache"): (Caching(0.2).eval(), Caching(0.0).eval()),
    (TraitName.CHANGES_ITSELF, ""): (Tracking(True).eval(), Tracking(False).eval()),
    (TraitName.CHANGES_ITSELF, "in a number"): (Counting(0.0).eval(), net()),
    (TraitName.CHANGES_INPUT, ""): (
        net(before=lambda x: x.mul_(0.5)),
        net(before=lambda x: x.mul(0.5)),
    ),
    (TraitName.GRAD_MODE, ""): (net(before=shifted_with_gradients), net()),
    (TraitName.REQUIRES_GRAD, ""): (
        net(before=shifted_if_required),
        net(before=shifted_with_gradients),
    ),
    (TraitName.TRAINING_FLAG, ""): (
        ReadsTrainingFlag(1.0).eval(),
        ReadsTrainingFlag(0.0).eval(),
    ),
    (TraitName.NO_GRADIENT, ""): (net(after=lambda z: z.detach()), net()),
    (TraitName.ZERO_GRADIENTS, ""): (net(before=quantized(8)), net()),
    (TraitName.NON_FINITE_GRADIENTS, ""): (
        net(before=lambda x: x + (x - x).abs().sqrt()),
        net(),
    ),
    (TraitName.WRONG_GRADIENTS, ""): (gradient_scaled_by(-1.0), gradient_scaled_by(1.0)),
    (TraitName.WRONG_GRADIENTS, "of other pixels"): (
        net(before=lambda x: straight_through(x.flip(-1), x)),
        net(before=lambda x: straight_through(x, x)),
    ),
    (TraitName.WRONG_GRADIENTS, "of a ripple"): (rippled(3e3), rippled(3)),
    (TraitName.NOISY_GRADIENTS, ""): (
        net(after=torch.sin, before=noise(1.0)),
        net(after=torch.sin),
    ),
    (TraitName.SATURATED_LOGITS, ""): (net(after=lambda z: 1e3 * z), net()),
    (TraitName.PROBABILITIES, ""): (net(after=lambda z: z.softmax(1)), net()),
    (TraitName.PROBABILITIES, "densities"): (net(after=lambda z: 1e-6 * z.exp()), net()),
    (TraitName.HIDDEN_SCORES, ""): (net(after=only_the_highest_score), net()),
    (TraitName.QUANTIZED, ""): (net(before=quantized(8)), net()),
    (TraitName.JUMPS, ""): (net(before=off_the_grid), net()),
    (TraitName.UNUSED_LAYERS, ""): (
        CornerSelects(in_python=True).eval(),
        CornerSelects(in_python=False).eval(),
    ),
    (TraitName.EXITS, ""): (EarlyExit().eval(), net()),
    (TraitName.BRANCHES, ""): (EarlyExit().eval(), net()),
    (TraitName.OPTIMIZES, ""): (net(before=optimized), net()),
    (TraitName.SOLVER_RESIDUAL, ""): (solving(3), solving(200)),
    (TraitName.ADAPTS, ""): (Adapting(), Adapting(0.0)),
    (TraitName.ADAPTS, "undeclared"): (UndeclaredAdaptation(), through(torch.sin)),
    (TraitName.ADAPTS_DIFFERENTIABLY, ""): (Adapting(), Adapting(constant=True)),
    (TraitName.SITES, ""): (
        through(torch.sin),
        Declared(lambda x, ctx: PLAIN(torch.sin(x))),
    ),
    (TraitName.VIEWS_DISAGREE, ""): (FLIPPED_VIEWS, two_views(lambda z: 2 * z)),
    (TraitName.OTHER_ANSWER, ""): (Mixing(FLIPPED_VIEWS.fn), LAST_EXIT),
    (TraitName.EXPENSIVE, ""): (CALLS_TWICE, CALLS_ONCE),
}


def traits_of(target):
    return sp.probe(target, X.clone(), Y, threat=LINF)


@pytest.mark.parametrize("case", TRAITS, ids=lambda case: " ".join(case).strip())
def test_a_trait_is_found_where_it_is_and_not_elsewhere(case):
    name = case[0]
    present, absent = (traits_of(target)[name] for target in TRAITS[case])
    assert present.present is True, present.evidence
    assert absent.present is False, absent.evidence
    assert present.confidence > 0.5
    assert absent.confidence > 0.5


KINDS = {
    "net": net(),
    "net without gradient": net(after=torch.Tensor.detach),
    "defense": through(torch.sin),
    "adapting defense": Adapting(),
    "scores": lambda x: PLAIN(x),
    "labels": lambda x: PLAIN(x).argmax(1),
}


@pytest.mark.parametrize("target", KINDS.values(), ids=KINDS)
def test_every_target_is_probed_for_every_trait_and_each_has_a_test(target):
    names = [trait.name for trait in traits_of(target)]
    assert sorted(names) == sorted(TraitName)
    assert set(names) == {name for name, _ in TRAITS}


def test_a_sound_net_has_no_traits():
    assert [trait.name for trait in traits_of(net()) if trait.present] == []


def test_declarations_are_compared_with_measurements():
    def fn(x, ctx):
        return PLAIN(x + 0.1 * ctx.randn_like(x))

    assert traits_of(Declared(fn, random=True)).denied == ()
    (trait,) = traits_of(Declared(fn)).denied
    assert (trait.name, trait.declared, trait.present) == (TraitName.RANDOM, False, True)
    assert traits_of(net())[TraitName.RANDOM].declared is None


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        (TraitName.ZERO_GRADIENTS, quantized(8)),
        (TraitName.NON_FINITE_GRADIENTS, lambda x: x + (x - x).abs().sqrt()),
        (TraitName.WRONG_GRADIENTS, lambda x: ScaledGradient.apply(x, -1.0)),
    ],
    ids=["zero", "not finite", "wrong"],
)
def test_a_named_site_with_useless_gradients_is_reported(name, fn):
    assert traits_of(through(fn))[name].places == ("purify",)
    assert traits_of(through(torch.sin))[name].places == ()


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        (TraitName.ZERO_GRADIENTS, quantized(8)),
        (TraitName.NO_GRADIENT, torch.Tensor.detach),
    ],
    ids=["zero", "detached"],
)
def test_the_innermost_layer_of_a_net_that_loses_gradients_is_reported(name, fn):
    inner = nn.Sequential(Layer(torch.sin), Layer(fn))
    target = nn.Sequential(inner, nn.Flatten(), nn.Linear(16, 3)).eval()
    assert traits_of(target)[name].places == ("0.1",)


class NoisyUnitGradient(torch.autograd.Function):
    """The identity, with the gradient divided by its norm plus noise."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        unit = g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        return unit + 0.5 * torch.randn_like(g)


def test_the_number_of_draws_follows_from_the_noise_of_gradients():
    # g = a + s n with |a|^2 = 1 over d = 16 pixels: the noise of one draw is 16 s^2, and the mean
    # of 16 s^2 = 4 draws has as much noise as signal. The estimate from four draws on twelve images
    # is accurate up to a factor of two.
    target = net(before=lambda x: NoisyUnitGradient.apply(x) + 1e-2 * torch.randn_like(x))
    assert 2 <= traits_of(target)[TraitName.NOISY_GRADIENTS].amount <= 8
    assert traits_of(net())[TraitName.NOISY_GRADIENTS].amount == 1


class RandomSign(nn.Module):
    """One of two nets for a whole batch, chosen by Python's generator."""

    def forward(self, x):
        return Net()(x) * (-1.0 if random.random() < 0.5 else 1.0)


def test_a_random_choice_between_two_nets_is_found():
    traits = traits_of(RandomSign().eval())
    present = {trait.name for trait in traits if trait.present}
    assert {TraitName.RANDOM, TraitName.NOISE_PER_BATCH} <= present
    assert TraitName.COUPLED not in traits


@pytest.mark.parametrize("salt", range(6))
def test_a_random_choice_that_often_repeats_is_found(salt):
    """One of three factors for the whole batch: two calls agree in a third of all cases."""

    def scaled(z):
        torch.rand(salt * len(z))
        return z * (1 + torch.randint(0, 3, ()))

    traits = traits_of(Net(after=scaled).eval())
    assert TraitName.RANDOM in traits
    # A batch of another size gets other draws, which does not make rows coupled.
    assert TraitName.COUPLED not in traits


STATIC = {
    "digits": (nets.DigitsCNN, (1, 8, 8)),
    "lenet": (lambda: nets.lenet(4, 32, side=8), (1, 8, 8)),
    "ResNet": (lambda: nets.resnet((1, 1), 8), (3, 16, 16)),
    "wide ResNet": (lambda: nets.wrn34_10(1, 16), (3, 16, 16)),
    "VGG": (lambda: nets.vgg16(8, (1, 1, 1)), (3, 16, 16)),
    "ViT": (lambda: nets.vit_small(16, 4, 24, 4), (3, 16, 16)),
    "DANN": (lambda: nets.dann_mnist(4, 16, side=8, kernel=3, padding=1), (1, 8, 8)),
}


@pytest.mark.parametrize(("build", "shape"), STATIC.values(), ids=STATIC)
def test_static_nets_of_the_zoo_have_no_traits(build, shape):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        static = build().eval()
        x = torch.rand(N, *shape)
    with torch.no_grad():
        out = static(x)
    several_exits = isinstance(out, list)
    y = (out[-1] if several_exits else out).argmax(1)
    traits = sp.probe(static, x, y, threat=sp.Linf(8 / 255))
    allowed = {TraitName.VIEWS_DISAGREE, TraitName.EXITS} if several_exits else set()
    found = {trait.name: trait.evidence for trait in traits if trait.present}
    assert {name: text for name, text in found.items() if name not in allowed} == {}
