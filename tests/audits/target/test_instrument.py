"""Sites in layers and functions of a net: the same values, and gradients where there were none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.sites import detached_inputs, sites_to_bypass
from saddlepoint.audits.target.instrument import FUNCTIONS, Instrumented
from saddlepoint.rng import Keys

X = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.zeros(5).long()
W = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LINF = sp.Linf(0.1)


class Net(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.layer = nn.Tanh()

    def forward(self, x):
        return self.layer(self.fn(x)) @ W


def doubled_without_gradient(x):
    with torch.no_grad():
        return 2 * x


# Site, function, and the slope that the identity gives it.
FLAT = {
    "torch.round": (lambda x: (8 * x).round() / 8, 1.0),
    "torch.sign": (lambda x: torch.sign(x - 0.5), 1.0),
    "torch.floor": (lambda x: x.floor(), 1.0),
    "torch.detach": (lambda x: 3 * x.detach(), 3.0),
    "torch.gt": (lambda x: (x > 0.5).double(), 1.0),
    "torch.lt": (lambda x: (x < 0.5).to(x.dtype), -1.0),
    "torch.ge": (lambda x: 2.0 * (x >= 0.5).type_as(x), 2.0),
    "torch.le": (lambda x: x.le(other=0.5).double(), -1.0),
    "torch.byte": (lambda x: (255 * x).byte().double() / 255, 1.0),
    "torch.no_grad": (doubled_without_gradient, 2.0),
}


def context(rows, rules=None):
    return sp.Context(Keys.of(0, torch.arange(rows)), rules or {})


def run(fn, site, rules):
    """The net, its input, and its output with one site."""
    ctx = context(len(X), rules)
    x = X.clone().requires_grad_()
    net = Net(fn).eval()
    out = Instrumented(net, (site,)).trace(x, ctx).last
    assert site in ctx.sites
    return net, x, out


@pytest.mark.parametrize(("site", "fn", "slope"), [(k, *v) for k, v in FLAT.items()], ids=FLAT)
def test_bpda_at_a_function_keeps_its_value_and_gives_it_the_gradient_of_the_identity(
    site, fn, slope
):
    net, x, out = run(fn, site, {site: sp.BPDA()})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    torch.testing.assert_close(grad, slope * (1 - torch.tanh(fn(X)).square()) * W[:, 0])


@pytest.mark.parametrize(("site", "fn"), [(k, v[0]) for k, v in FLAT.items()], ids=FLAT)
def test_without_a_rule_values_and_gradients_are_those_of_the_net(site, fn):
    net, x, out = run(fn, site, {})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    grad = None
    if out.requires_grad:
        grad = torch.autograd.grad(out[:, 0].sum(), x, allow_unused=True)[0]
    assert grad is None or (grad == 0).all()


def test_a_layer_is_a_site_and_the_net_is_restored_afterwards():
    net, x, out = run(lambda x: x, "layer", {"layer": sp.BPDA()})
    torch.testing.assert_close(out.detach(), net(X), rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    torch.testing.assert_close(grad, W[:, 0].expand_as(X))
    assert "forward" not in vars(net.layer)


def test_gradients_stay_disabled_if_the_attacker_disabled_them():
    instrumented = Instrumented(Net(doubled_without_gradient).eval(), FUNCTIONS)
    with torch.no_grad():
        out = instrumented.trace(X, context(len(X), {"torch.no_grad": sp.BPDA()})).last
        assert not torch.is_grad_enabled()
    assert not out.requires_grad


def test_a_rule_at_a_function_that_is_not_called_every_time_is_accepted():
    net = Net(lambda x: x.detach() if len(x) < 4 else x)
    instrumented = Instrumented(net, ("torch.detach",))
    for rows in (3, 5):
        x = X[:rows].clone().requires_grad_()
        ctx = context(rows, {"torch.detach": sp.BPDA()})
        (grad,) = torch.autograd.grad(instrumented.trace(x, ctx).last.sum(), x)
        ctx.check_rules()
        expected = (1 - X[:rows].tanh() ** 2) * W.sum(1)
        torch.testing.assert_close(grad, expected, rtol=0, atol=1e-14)


def with_numpy(x):
    return torch.from_numpy(np.round(x.detach().numpy() * 8) / 8)


def in_inference_mode(x):
    with torch.inference_mode():
        rounded = (8 * x).round() / 8
    return rounded.clone()


class TwoNets(nn.Module):
    """Two nets behind a step without a gradient; the second gets its output in single precision."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.first = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.second = nn.Linear(3, 2)
        self.first.double()

    def forward(self, x):
        processed = self.fn(x)
        return self.first(processed) + self.second(processed.float())


def probe_target(net):
    return ProbeTarget.of(net.eval(), X, Y, LINF)


DETACHING = pytest.mark.parametrize(
    "fn", [with_numpy, in_inference_mode], ids=["numpy", "inference mode"]
)


@DETACHING
def test_a_step_outside_torch_is_bypassed_at_the_layers_that_get_its_output(fn):
    torch.manual_seed(0)
    net = TwoNets(fn).eval()
    sites = ("input of first", "input of second")
    assert detached_inputs(probe_target(net)) == sites
    assert sites_to_bypass(probe_target(net)) == sites
    with torch.no_grad():
        expected = net(X)
    x = X.clone().requires_grad_()
    for rules in ({}, dict.fromkeys(sites, sp.BPDA())):
        out = Instrumented(net, sites).trace(x, context(5, rules)).last
        torch.testing.assert_close(out.detach(), expected, rtol=0, atol=0)
    (grad,) = torch.autograd.grad(out[:, 0].sum(), x)
    rounded = ((8 * X).round() / 8).requires_grad_()
    direct = net.first(rounded) + net.second(rounded.float())
    (expected_grad,) = torch.autograd.grad(direct[:, 0].sum(), rounded)
    torch.testing.assert_close(grad, expected_grad)
    assert not net.first._forward_pre_hooks


class InParts(nn.Module):
    """Images are processed outside torch two at a time."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return torch.cat([self.layer(with_numpy(part)) for part in x.split(2)])


def test_a_step_outside_torch_is_bypassed_for_parts_of_the_images():
    net = InParts().eval()
    x = X.clone().requires_grad_()
    rules = {"input of layer": sp.BPDA()}
    out = Instrumented(net, ("input of layer",)).trace(x, context(5, rules)).last
    weights = torch.arange(5.0, dtype=torch.double)
    (grad,) = torch.autograd.grad((weights * out[:, 0]).sum(), x)
    torch.testing.assert_close(grad, weights[:, None] * net.layer.weight[0].detach())


class Template(nn.Module):
    """A layer with a constant input of the shape of images, beside images processed by numpy."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x):
        return 1e-3 * self.layer(torch.full_like(x, 0.5)) + with_numpy(x)[:, :2]


NOT_DETACHED = {
    "inputs with a gradient": TwoNets(lambda x: x),
    "layers in sequence": nn.Sequential(nn.Linear(3, 2).double(), nn.Tanh()),
    "a sum with a constant": TwoNets(lambda x: torch.zeros(5, 3, dtype=x.dtype) + x),
    "an input that does not depend on the images": Template(),
}


@pytest.mark.parametrize("net", NOT_DETACHED.values(), ids=NOT_DETACHED)
def test_other_inputs_of_layers_are_no_sites(net):
    assert detached_inputs(probe_target(net)) == ()


def test_a_step_outside_torch_that_no_layer_follows_cannot_be_bypassed():
    assert sites_to_bypass(probe_target(Template())) == ()


@DETACHING
def test_an_audit_bypasses_steps_outside_torch(fn):
    torch.manual_seed(0)
    net = TwoNets(fn).eval()
    with torch.no_grad():
        y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=LINF, budget="quick")
    assert any("input of first" in row.reason for row in result.rows)
