"""Outputs of named layers: early stop, layers that are called twice, and invalid names."""

from __future__ import annotations

import pytest
import torch
from tests.zoo.adaptive.purifiers import images, smooth_net
from torch import nn
from torch.testing import assert_close

from saddlepoint.zoo.adaptive.feature_extraction import (
    example_layer_outputs,
    layer_outputs,
    logits_and_features,
)

EXACT = {"rtol": 0.0, "atol": 0.0}
N = 5


class CallsTwice(nn.Module):
    """Network that applies the same linear layer twice."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(torch.tanh(self.linear(x)))


def test_layers_after_the_last_requested_one_are_not_run():
    net = smooth_net()
    x = images(N)
    calls = []
    net[5].register_forward_hook(lambda *_: calls.append(1))
    outputs = layer_outputs(net, ("2", "0"), x)
    assert_close(outputs[0], net[:3](x), **EXACT)
    assert_close(outputs[1], net[:1](x), **EXACT)
    assert not calls
    assert [len(m._forward_hooks) for m in net] == [0, 0, 0, 0, 0, 1]


def test_the_first_output_of_a_layer_that_is_called_twice_counts():
    net = CallsTwice().eval()
    x = torch.linspace(-1, 1, 12).view(3, 4)
    result = logits_and_features(net, "linear", x)
    assert_close(result.features, net.linear(x), **EXACT)
    assert_close(result.logits, net(x), **EXACT)
    assert_close(layer_outputs(net, ["linear"], x)[0], result.features, **EXACT)


def test_a_layer_that_is_never_called_and_repeated_or_missing_names_raise():
    net = CallsTwice().eval()
    x = torch.zeros(3, 4)
    for extract in (
        lambda: layer_outputs(net, ["unused"], x),
        lambda: logits_and_features(net, "unused", x),
    ):
        with pytest.raises(ValueError, match="never calls"):
            extract()
    for names in ((), ("linear", "linear")):
        with pytest.raises(ValueError, match="each name once"):
            example_layer_outputs(net, names, x)
