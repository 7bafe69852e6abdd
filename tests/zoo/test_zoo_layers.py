"""Hooks on layers see the current forward pass only, and are removed afterwards."""

import threading

import pytest
import torch
from torch import nn

from saddlepoint.zoo.adaptive.feature_extraction import layer_outputs, logits_and_features
from saddlepoint.zoo.layers import check_known_layers, reaching


def net(inplace: bool) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=inplace), nn.Linear(6, 3)).double()


X = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)


def test_an_in_place_layer_does_not_change_recorded_features():
    expected = net(inplace=False)[0](X)
    assert expected.lt(0).any()  # the in-place ReLU would change these
    first, last = layer_outputs(net(inplace=True), ["0", "2"], X)
    assert torch.equal(first, expected)
    assert torch.equal(last, net(inplace=False)(X))
    assert torch.equal(logits_and_features(net(inplace=True), "0", X).features, expected)


def test_the_result_of_the_hook_replaces_the_output_of_the_layer():
    subject = net(inplace=False)
    with reaching(subject, ["0"], lambda name, entering, out: out + 1):
        changed = subject(X)
    assert torch.equal(changed, subject[2](subject[1](subject[0](X) + 1)))
    with reaching(subject, ["0"], lambda name, entering, out: None):
        assert torch.equal(subject(X), subject[2](subject[1](subject[0](X))))


def test_passes_of_other_threads_are_not_recorded_and_hooks_are_removed():
    subject = net(inplace=False)
    calls = []

    def record(name, entering, out):
        calls.append((name, entering, out))

    with reaching(subject, ["0", "2"], record):
        other = threading.Thread(target=subject, args=(X,))
        other.start()
        other.join()
        assert calls == []
        subject(X)
    assert [name for name, _, _ in calls] == ["0", "2"]
    assert torch.equal(calls[0][1], X)
    assert not any(module._forward_hooks for module in subject.modules())


def test_an_unknown_layer_raises_and_names_the_nearest():
    named = nn.Sequential()
    named.add_module("stage1", nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"no layer called 'stage_1'\. Nearest: 'stage1'\."):
        check_known_layers(named, ["stage_1"])
    with pytest.raises(ValueError, match="'input'"):
        check_known_layers(named, ["inptu"], beside=("input",))
    check_known_layers(named, ["input", "stage1"], beside=("input",))
