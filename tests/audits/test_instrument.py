"""A network is opened at layers and functions: the same values, and gradients where there were none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from saddlepoint.audits.probes.subject import Subject
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.sites import entrances, killers
from saddlepoint.audits.target.instrument import FUNCTIONS, Instrumented
from saddlepoint.rng import Keys

X = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.layer = nn.Tanh()

    def forward(self, x):
        return self.layer(self.fn(x)) @ W


def silently(x):
    with torch.no_grad():
        return 2 * x


FLAT = {
    "torch.round": (lambda x: (8 * x).round() / 8, 1.0),
    "torch.sign": (lambda x: torch.sign(x - 0.5), 1.0),
    "torch.floor": (lambda x: x.floor(), 1.0),
    "torch.detach": (lambda x: 3 * x.detach(), 3.0),
    "torch.gt": (lambda x: (x > 0.5).double(), 1.0),
    "torch.lt": (lambda x: (x < 0.5).to(x.dtype), -1.0),
    "torch.ge": (lambda x: 2.0 * (x >= 0.5).type_as(x), 2.0),
    "torch.byte": (lambda x: (255 * x).byte().double() / 255, 1.0),
    "torch.no_grad": (silently, 2.0),
}


def opened(fn, site, rules):
    ctx = sp.Context(Keys.of(0, torch.arange(len(X))), rules)
    x = X.clone().requires_grad_()
    net = Net(fn).eval()
    out = Instrumented(net, (site,)).trace(x, ctx).last
    assert site in ctx.sites
    return net, x, out


@pytest.mark.parametrize(("site", "fn", "slope"), [(k, *v) for k, v in FLAT.items()], ids=FLAT)
def test_a_flat_function_keeps_its_value_and_is_crossed_by_the_identity(site, fn, slope):
    net, x, out = opened(fn, site, {site: sp.BPDA()})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    torch.testing.assert_close(grad, slope * (1 - torch.tanh(fn(X)).square()) * W[:, 0])


@pytest.mark.parametrize(("site", "fn"), [(k, v[0]) for k, v in FLAT.items()], ids=FLAT)
def test_without_a_rule_it_is_the_network_itself(site, fn):
    net, x, out = opened(fn, site, {})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    grad = (
        torch.autograd.grad(out[:, 0].sum(), x, allow_unused=True)[0] if out.requires_grad else None
    )
    assert grad is None or (grad == 0).all()


def test_layers_are_sites_by_name_and_the_network_is_left_as_it_was():
    net, x, out = opened(lambda x: x, "layer", {"layer": sp.BPDA()})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    torch.testing.assert_close(grad, W[:, 0].expand_as(X))
    assert "forward" not in vars(net.layer)


def test_recording_stays_off_where_the_attacker_only_reads():
    net = Net(silently).eval()
    with torch.no_grad():
        out = (
            Instrumented(net, FUNCTIONS)
            .trace(X, sp.Context(Keys.of(0, torch.arange(len(X))), {"torch.no_grad": sp.BPDA()}))
            .last
        )
        assert not torch.is_grad_enabled()
    assert not out.requires_grad


def test_a_rule_at_a_function_that_is_not_always_called_is_no_mistake():
    opened = Instrumented(Net(lambda x: x.detach() if len(x) < 4 else x), ("torch.detach",))
    for rows in (3, 5):
        x = X[:rows].clone().requires_grad_()
        ctx = sp.Context(Keys.of(0, torch.arange(rows)), {"torch.detach": sp.BPDA()})
        (grad,) = torch.autograd.grad(opened.trace(x, ctx).last.sum(), x)
        ctx.refuse_unknown_rules()
        torch.testing.assert_close(grad, (1 - X[:rows].tanh() ** 2) * W.sum(1), rtol=0, atol=1e-14)


# ---- what is made of the images out of torch ------------------------------------------------------------------------------------


def by_numpy(x):
    return torch.from_numpy(np.round(x.detach().numpy() * 8) / 8)


def in_inference(x):
    with torch.inference_mode():
        made = (8 * x).round() / 8
    return made.clone()


class Fed(nn.Module):
    """Two nets behind a step that no gradient takes; the second is given what the first is, in single precision."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.first = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.second = nn.Linear(3, 2)
        self.first.double()

    def forward(self, x):
        made = self.fn(x)
        return self.first(made) + self.second(made.float())


@pytest.mark.parametrize("fn", [by_numpy, in_inference], ids=["numpy", "inference mode"])
def test_what_no_gradient_takes_is_gone_around_at_the_layers_that_are_given_it(fn):
    torch.manual_seed(0)
    net = Fed(fn).eval()
    subject = Subject.of(net, X, torch.zeros(5).long(), sp.Linf(0.1))
    sites = ("input of first", "input of second")
    assert entrances(subject) == sites
    assert killers(subject) == sites
    x = X.clone().requires_grad_()
    out = Instrumented(net, sites).trace(x, sp.Context.seeded(0, 5)).last
    with torch.no_grad():
        answer = net(X)
    torch.testing.assert_close(out.detach(), answer, rtol=0, atol=0)
    out = (
        Instrumented(net, sites)
        .trace(x, sp.Context(Keys.of(0, torch.arange(5)), dict.fromkeys(sites, sp.BPDA())))
        .last
    )
    torch.testing.assert_close(out.detach(), answer, rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    made = ((8 * X).round() / 8).requires_grad_()
    (want,) = torch.autograd.grad((net.first(made) + net.second(made.float()))[:, 0].sum(), made)
    torch.testing.assert_close(grad, want)
    assert not net.first._forward_pre_hooks


def test_layers_that_are_given_gradients_or_something_else_are_no_entrances():
    y = torch.zeros(5).long()
    space = sp.Linf(0.1)
    assert entrances(Subject.of(Fed(lambda x: x).eval(), X, y, space)) == ()
    assert (
        entrances(
            Subject.of(nn.Sequential(nn.Linear(3, 2).double(), nn.Tanh()).eval(), X, y, space)
        )
        == ()
    )
    assert (
        entrances(
            Subject.of(Fed(lambda x: torch.zeros(5, 3, dtype=x.dtype) + x).eval(), X, y, space)
        )
        == ()
    )


class Template(nn.Module):
    """A layer that is given a picture which is the same for all images, beside what numpy makes of them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return 1e-3 * self.layer(torch.full_like(x, 0.5)) + by_numpy(x)[:, :2]


def test_what_does_not_change_with_the_images_is_no_entrance():
    subject = Subject.of(Template().eval(), X, torch.zeros(5).long(), sp.Linf(0.1))
    assert entrances(subject) == killers(subject) == ()


@pytest.mark.parametrize("fn", [by_numpy, in_inference], ids=["numpy", "inference mode"])
def test_an_audit_goes_around_what_is_made_out_of_torch(fn):
    torch.manual_seed(0)
    net = Fed(fn).eval()
    with torch.no_grad():
        y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Linf(0.1), budget="quick")
    assert any("input of first" in row.reason for row in result.rows)
