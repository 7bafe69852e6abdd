"""Prepared nets are equal to the given ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saddlepoint.engine import prepare
from saddlepoint.engine.folding import folded


class Residual(nn.Module):
    """A residual block and a head, with normalization after convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 16)
        self.head_bn = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        x = self.bn(self.conv(x)).relu()
        x = (x + self.inner(x)).relu().mean((2, 3))
        return self.out(self.head_bn(self.head(x)).relu())


class Shared(Residual):
    """One convolution that is used twice, once without normalization."""

    def forward(self, x):
        first = self.conv(x)
        x = (self.bn(self.conv(x)) + first).relu()
        return self.out(self.head(x.mean((2, 3))))


class Untraceable(Residual):
    """A decision about values, which torch.fx cannot trace."""

    def forward(self, x):
        x = self.bn(self.conv(x)).relu()
        if float(x.detach().amax()) > 0:
            x = (x + self.inner(x)).relu()
        return self.out(self.head(x.mean((2, 3))))


class Hooked(Residual):
    """A forward hook that changes the output of a convolution."""

    def __init__(self):
        super().__init__()
        self.conv.register_forward_hook(lambda layer, inputs, out: 2 * out)


def trained(kind):
    """A net in eval mode with statistics that are not those of a new net."""
    torch.manual_seed(0)
    net = kind()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -1, 1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.uniform_(layer.bias, -1, 1)
    return net.eval()


def gradient(net, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(net(x).square().sum(), x)[0]


@pytest.mark.parametrize(
    ("kind", "layers"), [(Residual, 3), (Shared, 0), (Untraceable, 1), (Hooked, 2)]
)
def test_folding_keeps_outputs_and_input_gradients(kind, layers):
    net = trained(kind).double()
    x = torch.rand(5, 3, 8, 8, dtype=torch.float64)
    other, count = folded(net)
    assert count == layers
    assert_close(other(x), net(x), rtol=1e-12, atol=1e-12)
    assert_close(gradient(other, x), gradient(net, x), rtol=1e-11, atol=1e-12)


def test_the_given_net_is_not_changed():
    net = trained(Residual)
    before = copy.deepcopy(net.state_dict())
    prepare(net, torch.rand(4, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert not net.training


@pytest.mark.parametrize("kind", [Residual, Shared, Untraceable])
def test_a_prepared_net_agrees_on_other_images(kind):
    net = trained(kind)
    prepared = prepare(net, torch.rand(16, 3, 8, 8))
    x = torch.rand(4, 3, 8, 8)
    assert_close(prepared.net(x), net(x), rtol=1e-4, atol=1e-5)
    assert prepared.choice in ("plain", "folded", "folded, channels-last")
    assert not any(parameter.requires_grad for parameter in prepared.net.parameters())


def test_a_form_that_differs_is_not_used(monkeypatch):
    def wrong(net):
        other, count = folded(net)
        with torch.no_grad():
            other.out.bias.add_(0.01)
        return other, count

    monkeypatch.setattr("saddlepoint.engine.trial.folded", wrong)
    prepared = prepare(trained(Residual), torch.rand(4, 3, 8, 8))
    assert prepared.choice == "plain"
    assert "folded differs by " in prepared.reason


def test_a_net_in_training_mode_is_left_alone():
    prepared = prepare(trained(Residual).train(), torch.rand(4, 3, 8, 8))
    assert (prepared.choice, prepared.reason) == ("plain", "the net is in training mode")


def test_a_net_without_layers_to_fold_is_left_alone():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    prepared = prepare(net, torch.rand(4, 3, 2, 2))
    assert prepared.choice == "plain"
    assert prepared.seconds == {}
