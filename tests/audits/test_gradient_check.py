"""A gradient that is not the slope of what is answered is told, and led around, wherever in the set and for whichever pixels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.gradient_check import unfaithful
from saddlepoint.audits.target.instrument import Instrumented
from saddlepoint.rng import Keys
from saddlepoint.selftests.problem import four_classes, left

N = 16
SIDE = 8
LINF = sp.Linf(0.1)
X = (
    (0.2 + 0.6 * torch.rand(N, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))) * 255
).round() / 255
WEIGHT = torch.randn(SIDE * SIDE, 3, generator=torch.Generator().manual_seed(1))
Y = ((X - 0.5).flatten(1) @ WEIGHT).argmax(1)
EVERY_OTHER = (torch.arange(SIDE * SIDE) % 2).view(1, SIDE, SIDE).float()


class Net(nn.Module):
    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, x):
        return (self.before(x) - 0.5).flatten(1) @ WEIGHT.to(x)


class Factor(torch.autograd.Function):
    """The identity, with a gradient times the factor."""

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
    """The gradient of the identity on images of 256 levels, and `sign` times it elsewhere."""

    def before(x):
        off = (255 * x - (255 * x).round()).abs().flatten(1).amax(1) > 1e-3
        return Factor.apply(x, torch.where(off, sign, 1.0).view(-1, 1, 1, 1))

    return before


def only_zeros(sign):
    """`sign` times the gradient where the answer is class 0."""
    return lambda x: Factor.apply(
        x, torch.where(Net(lambda v: v)(x).argmax(1) == 0, sign, 1.0).view(-1, 1, 1, 1)
    )


FAULTS = {
    "no gradient in half of the pixels": (half_detached, lambda x: x, "torch.detach"),
    "right on the images alone": (off_the_grid(-1.0), off_the_grid(1.0), "torch.autograd.Function"),
    "wrong for one class": (only_zeros(-1.0), only_zeros(1.0), "torch.autograd.Function"),
}


@pytest.mark.parametrize(("wrong", "right", "site"), FAULTS.values(), ids=FAULTS)
def test_a_gradient_that_is_not_the_slope_is_told_with_the_way_around_it(wrong, right, site):
    assert (Y == 0).sum() >= 2
    found, twin = (
        sp.probe(Net(before).eval(), X, Y, threat=LINF)["misdirected gradients"]
        for before in (wrong, right)
    )
    assert found.present
    assert found.places == (site,)
    assert not twin.present


def test_what_a_gradient_leaves_out_is_found_again_by_attacks():
    """In 32 x 32 pixels a search without gradients is far from the worst case: only the whole gradient gets there."""
    problem = four_classes(40, 0.005, 32)
    mask = (torch.arange(32) % 2).float()
    net = problem.net()
    detached = Wrapped(net, lambda x: mask * x + ((1 - mask) * x).detach()).eval()
    result = sp.audit(
        detached, problem.x, problem.y, threat=sp.Linf(problem.radius), budget="quick"
    )
    assert result.robust_accuracy == pytest.approx(left(problem, *problem.box()), abs=0.03)


class Wrapped(nn.Module):
    def __init__(self, net, before):
        super().__init__()
        self.net = net
        self.before = before

    def forward(self, x):
        return self.net(self.before(x))


def judged(value, grad, x=None):
    x = X.double() if x is None else x
    return unfaithful(value, x, grad.expand_as(x).double(), 0.1, Keys.of(0, torch.arange(len(x))))


def test_slopes_and_surrogates_of_quantizers_are_faithful_and_parts_of_slopes_are_not():
    w = WEIGHT[:, 0].view(1, 1, SIDE, SIDE).double()
    assert not judged(lambda x: (w * x).flatten(1).sum(1), w).any()
    assert not judged(lambda x: (w * x).sin().flatten(1).sum(1), w * (w * X.double()).cos()).any()
    for levels in (16, 32):
        assert not judged(lambda x, n=levels: (w * (n * x).round() / n).flatten(1).sum(1), w).any()
    assert judged(lambda x: (w * x).flatten(1).sum(1), w * EVERY_OTHER).double().mean() > 0.5
    assert judged(lambda x: (w * x).flatten(1).sum(1), -w).all()


def test_rows_that_answer_together_are_not_judged():
    w = WEIGHT[:, 0].view(1, 1, SIDE, SIDE).double()
    assert not judged(
        lambda x: (w * x).flatten(1).sum(1) + 3 * (w * x.flip(0)).flatten(1).sum(1), w
    ).any()


def test_a_backward_pass_that_is_written_by_hand_is_crossed_by_the_identity():
    net = Net(off_the_grid(-1.0)).eval()
    site = "torch.autograd.Function"
    for rules, sign in (({}, -1.0), ({site: sp.BPDA()}, 1.0)):
        x = (X + 0.001).requires_grad_()
        ctx = sp.Context(Keys.of(0, torch.arange(N)), rules)
        out = Instrumented(net, (site,)).trace(x, ctx).last
        torch.testing.assert_close(out.detach(), net(x.detach()), rtol=0, atol=0)
        (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
        torch.testing.assert_close(grad, sign * WEIGHT[:, 0].view(1, 1, SIDE, SIDE).expand_as(x))


class Overwriting(nn.Module):
    """x + a part of a history that is overwritten under no_grad, as solvers do, and is there to be differentiated."""

    def forward(self, x):
        with torch.no_grad():
            history = torch.zeros(2, *x.shape)
            for step in range(4):
                history[step % 2] = (
                    0.5 * history[(step + 1) % 2] * history[(step + 1) % 2]
                ) - 3 * x
        return history[1] + x


class Learning(nn.Module):
    """Half of the gradient is lost; and where nothing is recorded a parameter is changed in place."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.shift.mul_(0.0)
        return half_detached(x) + self.shift


def test_what_is_overwritten_under_no_grad_is_recorded_all_the_same():
    found = sp.probe(Wrapped(Net(lambda x: x), Overwriting()).eval(), X, Y, threat=LINF)[
        "misdirected gradients"
    ]
    assert found.places == ("torch.no_grad",)


def test_what_no_graph_can_record_is_no_way_around_and_no_error():
    found = sp.probe(Wrapped(Net(lambda x: x), Learning()).eval(), X, Y, threat=LINF)[
        "misdirected gradients"
    ]
    assert found.places == ("before",)
