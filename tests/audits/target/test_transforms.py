"""Models that use `torch.func` inside are observed like others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import saddlepoint as sp
from saddlepoint.audits.target.transforms import in_transform, unwrapped

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(40, 6, generator=GENERATOR)


class OneStep(nn.Module):
    """A linear net; each image first moves the bias by one gradient step on the entropy."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.linear.weight.data = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        self.linear.bias.data.zero_()

    def forward(self, x):
        parameters = dict(self.linear.named_parameters())

        def entropy(bias, one):
            out = functional_call(self.linear, {**parameters, "bias": bias}, (one[None],))[0]
            return -(out.softmax(0) * out.log_softmax(0)).sum()

        moved = vmap(lambda one: parameters["bias"] - grad(entropy)(parameters["bias"], one))
        return x @ self.linear.weight.T + moved(x)


def test_a_net_that_adapts_each_image_by_transforms_is_audited():
    net = OneStep().eval()
    y = net(X).argmax(1)
    result = sp.audit(net, X, y, threat=sp.Linf(0.05), budget="quick", progress=False)
    assert result.clean_accuracy == 1
    assert result.robust_accuracy < 1
    assert not [one for one in result.symptoms if "unused" in one.name]


@pytest.mark.parametrize("transform", [vmap, grad])
def test_tensors_inside_of_a_transform_are_recognized(transform):
    inside = []

    def function(x):
        inside.append((in_transform(x), in_transform(unwrapped(x))))
        return x.sum()

    transform(function)(X[0])
    assert inside == [(True, False)]
    assert not in_transform(X)
