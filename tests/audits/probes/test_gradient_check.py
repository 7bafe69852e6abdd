"""Gradients that differ from finite differences are found and bypassed, anywhere in the set."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.gradient_check import wrong_gradients
from saddlepoint.audits.probes.gradients import probe_gradients
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import TraitName, Traits
from saddlepoint.audits.target.instrument import Instrumented
from saddlepoint.rng import Keys
from saddlepoint.selftests.problem import four_classes, left

N = 16
SIDE = 8
LINF = sp.Linf(0.1)
PIXELS = torch.rand(N, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
X = ((0.2 + 0.6 * PIXELS) * 255).round() / 255
WEIGHT = torch.randn(SIDE * SIDE, 3, generator=torch.Generator().manual_seed(1))
Y = ((X - 0.5).flatten(1) @ WEIGHT).argmax(1)
EVERY_OTHER = (torch.arange(SIDE * SIDE) % 2).view(1, SIDE, SIDE).float()
CUSTOM_BACKWARD = "torch.autograd.Function"


class Net(nn.Module):
    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, x):
        return (self.before(x) - 0.5).flatten(1) @ WEIGHT.to(x)


class Before(nn.Module):
    """A step before a net, as a layer if it is one."""

    def __init__(self, net, before):
        super().__init__()
        self.net = net
        self.before = before

    def forward(self, x):
        return self.net(self.before(x))


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def half_detached(x):
    return EVERY_OTHER * x + ((1 - EVERY_OTHER) * x).detach()


def off_the_grid(sign):
    """The right gradient on images with 256 levels, `sign` times it elsewhere."""

    def before(x):
        off = (255 * x - (255 * x).round()).abs().flatten(1).amax(1) > 1e-3
        return ScaledGradient.apply(x, torch.where(off, sign, 1.0).view(-1, 1, 1, 1))

    return before


def only_class_0(sign):
    """`sign` times the gradient where class 0 is predicted."""

    def before(x):
        predicted = Net(lambda v: v)(x).argmax(1)
        return ScaledGradient.apply(x, torch.where(predicted == 0, sign, 1.0).view(-1, 1, 1, 1))

    return before


def trait_of(target):
    return sp.probe(target.eval(), X, Y, threat=LINF)[TraitName.WRONG_GRADIENTS]


FAULTS = {
    "no gradient in half of the pixels": (half_detached, lambda x: x, "torch.detach"),
    "right at clean images only": (off_the_grid(-1.0), off_the_grid(1.0), CUSTOM_BACKWARD),
    "wrong for one class": (only_class_0(-1.0), only_class_0(1.0), CUSTOM_BACKWARD),
}


@pytest.mark.parametrize(("wrong", "right", "site"), FAULTS.values(), ids=FAULTS)
def test_a_wrong_gradient_is_reported_with_the_site_to_bypass(wrong, right, site):
    assert (Y == 0).sum() >= 2
    found = trait_of(Net(wrong))
    assert found.present
    assert found.places == (site,)
    assert not trait_of(Net(right)).present


def test_attacks_recover_the_part_that_a_gradient_lacks():
    """With 32 x 32 pixels a search without gradients is far from the worst case."""
    problem = four_classes(40, 0.005, 32)
    mask = (torch.arange(32) % 2).float()
    target = Before(problem.net(), lambda x: mask * x + ((1 - mask) * x).detach()).eval()
    threat = sp.Linf(problem.radius)
    result = sp.audit(target, problem.x, problem.y, threat=threat, budget="quick")
    assert result.robust_accuracy == pytest.approx(left(problem, *problem.box()), abs=0.03)


SLOPE = WEIGHT[:, 0].view(1, 1, SIDE, SIDE).double()


def per_row(grad):
    """The gradient of a weighted sum, from the gradients of independent rows."""
    return lambda weights: weights.view(-1, 1, 1, 1) * grad.expand_as(X)


def check(value, grad):
    gradient = grad if callable(grad) else per_row(grad)
    return wrong_gradients(value, X.double(), gradient, 0.1, Keys.of(0, torch.arange(N)))


def linear(x):
    return (SLOPE * x).flatten(1).sum(1)


def test_exact_gradients_are_right():
    assert not check(linear, SLOPE).any()
    curved = SLOPE * (SLOPE * X.double()).cos()
    assert not check(lambda x: (SLOPE * x).sin().flatten(1).sum(1), curved).any()


@pytest.mark.parametrize("levels", [16, 32])
def test_the_surrogate_gradient_of_a_quantizer_is_right(levels):
    def quantized(x):
        return (SLOPE * (levels * x).round() / levels).flatten(1).sum(1)

    assert not check(quantized, SLOPE).any()


def test_a_part_of_a_gradient_and_its_opposite_are_wrong():
    assert check(linear, SLOPE * EVERY_OTHER).double().mean() > 0.5
    assert check(linear, -SLOPE).all()


def of_two_rows(x):
    """Each value depends on two rows."""
    return linear(x) + 3 * linear(x.flip(0))


def test_exact_gradients_of_coupled_rows_are_right():
    assert not check(of_two_rows, lambda w: per_row(SLOPE)(w + 3 * w.flip(0))).any()


def test_gradients_of_coupled_rows_without_the_other_rows_are_wrong():
    assert check(of_two_rows, SLOPE).all()


def centered(x):
    """Values relative to their mean over the batch, with a sign for each of two classes."""
    signs = (-1.0) ** torch.arange(N)
    return signs * (linear(x) - linear(x).mean())


def test_a_detached_mean_of_the_batch_is_found_although_the_influences_of_two_classes_cancel():
    signs = (-1.0) ** torch.arange(N)

    def detached(weights):
        return per_row(SLOPE)(weights * signs)

    def exact(weights):
        return per_row(SLOPE)(weights * signs - (weights * signs).mean())

    assert check(centered, detached).all()
    assert not check(centered, exact).any()


@pytest.mark.parametrize(("rules", "sign"), [({}, -1.0), ({CUSTOM_BACKWARD: sp.BPDA()}, 1.0)])
def test_bpda_replaces_a_custom_backward_pass_by_the_identity(rules, sign):
    net = Net(off_the_grid(-1.0)).eval()
    x = (X + 0.001).requires_grad_()
    ctx = sp.Context(Keys.of(0, torch.arange(N)), rules)
    out = Instrumented(net, (CUSTOM_BACKWARD,)).trace(x, ctx).last
    torch.testing.assert_close(out.detach(), net(x.detach()), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    torch.testing.assert_close(grad, sign * WEIGHT[:, 0].view(1, 1, SIDE, SIDE).expand_as(x))


class Overwriting(nn.Module):
    """Overwrites a history under no_grad, as solvers do, and uses a part of it."""

    def forward(self, x):
        with torch.no_grad():
            history = torch.zeros(2, *x.shape)
            for step in range(4):
                last = history[(step + 1) % 2]
                history[step % 2] = (0.5 * last * last) - 3 * x
        return history[1] + x


def test_gradients_are_recorded_through_tensors_that_are_overwritten_under_no_grad():
    assert trait_of(Before(Net(lambda x: x), Overwriting())).places == ("torch.no_grad",)


class ChangesParameter(nn.Module):
    """Loses half of the gradient, and modifies a parameter in place under no_grad."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.shift.mul_(0.0)
        return half_detached(x) + self.shift


def test_code_that_no_graph_can_record_is_no_site_and_no_error():
    assert trait_of(Before(Net(lambda x: x), ChangesParameter())).places == ("before",)


@pytest.mark.parametrize(("factor", "calls"), [(1.0, 2 + 8), (-1.0, 2 + 24)])
def test_longer_steps_are_left_out_where_no_gradient_can_be_wrong(factor, calls):
    count = []

    def value(x):
        count.append(1)
        return (x.flatten(1) @ WEIGHT)[:, 0]

    gradient = factor * WEIGHT[:, 0].view(1, 1, SIDE, SIDE).expand_as(X)
    keys = Keys.of(0, torch.arange(N))
    wrong = wrong_gradients(value, X, lambda weights: weights[0] * gradient, 0.1, keys)
    assert wrong.all() if factor < 0 else not wrong.any()
    # Two calls find out whether rows are coupled; then 4 directions, 2 sides, 1 or 3 step lengths.
    assert len(count) == calls


class Spike(torch.autograd.Function):
    """A hard threshold with the derivative of a fast sigmoid, as in spiking nets."""

    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).to(u)

    @staticmethod
    def backward(ctx, grad):
        (u,) = ctx.saved_tensors
        return grad / (1 + 5 * u.abs()) ** 2


class Threshold(nn.Module):
    """A hundred units with a threshold, and a linear term that carries exact gradients."""

    def __init__(self, activation):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.activation = activation
        self.first = torch.randn(16, 100, generator=generator) / 4
        self.second = torch.randn(100, 3, generator=generator) / 10
        self.bias = torch.randn(100, generator=generator) / 2
        self.linear = 0.3 * torch.randn(16, 3, generator=generator)

    def forward(self, x):
        x = x.flatten(1)
        return self.activation(x @ self.first + self.bias) @ self.second + x @ self.linear


@pytest.mark.parametrize(
    ("activation", "wrong"), [(Spike.apply, True), (lambda u: (5 * u).sigmoid(), False)]
)
def test_surrogates_of_thresholds_that_agree_partly_are_wrong_gradients(activation, wrong):
    """Over no step length do they agree by 0.9, and over the smallest by 0.6."""
    net = Threshold(activation).eval()
    images = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    target = ProbeTarget.of(net, images, net(images).argmax(1), sp.Linf(0.1))
    traits = Traits(tuple(probe_gradients(target)))
    assert (TraitName.WRONG_GRADIENTS in traits) is wrong


@pytest.mark.parametrize("detached", [True, False])
def test_missing_gradients_of_an_average_are_found_along_smooth_directions(detached):
    """Random signs hardly move the average of a batch; a brighter batch does."""
    generator = torch.Generator().manual_seed(0)
    images = 0.4 + 0.2 * torch.rand(8, 1, 16, 16, generator=generator, dtype=torch.float64)
    weight = 0.3 + torch.randn(256, generator=generator, dtype=torch.float64)

    def value(x, average=None):
        average = x.mean() if average is None else average
        return (x - average).flatten(1) @ weight

    def gradient(weights):
        leaf = images.clone().requires_grad_()
        outputs = value(leaf, leaf.mean().detach() if detached else None)
        return torch.autograd.grad((weights * outputs).sum(), leaf)[0]

    keys = Keys.of(0, torch.arange(8))
    assert bool(wrong_gradients(value, images, gradient, 0.1, keys).all()) is detached
