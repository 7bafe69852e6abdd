"""Layers are seen as they answer, by the pass that asked, and by no other."""

import threading

import pytest
import torch
from torch import nn

from saddlepoint.zoo.adaptive.features import features, looked
from saddlepoint.zoo.layers import reaching, refuse_unknown


def net(inplace: bool) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=inplace), nn.Linear(6, 3)).double()


X = torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)


def test_a_layer_that_works_in_place_does_not_change_what_was_seen_before_it():
    expected = net(inplace=False)[0](X)
    assert expected.lt(0).any()  # there is something to change
    first, last = features(net(inplace=True), ["0", "2"], X)
    assert torch.equal(first, expected)
    assert torch.equal(last, net(inplace=False)(X))
    assert torch.equal(looked(net(inplace=True), "0", X).features, expected)


def test_what_is_returned_takes_the_place_of_what_the_layer_gives():
    subject = net(inplace=False)
    with reaching(subject, ["0"], lambda name, given, out: out + 1):
        moved = subject(X)
    assert torch.equal(moved, subject[2](subject[1](subject[0](X) + 1)))
    with reaching(subject, ["0"], lambda name, given, out: None):
        assert torch.equal(subject(X), subject[2](subject[1](subject[0](X))))


def test_another_thread_is_not_seen_and_no_hook_stays_behind():
    subject = net(inplace=False)
    seen = []

    def note(name, given, out):
        seen.append((name, given, out))

    with reaching(subject, ["0", "2"], note):
        other = threading.Thread(target=subject, args=(X,))
        other.start()
        other.join()
        assert seen == []
        subject(X)
    assert [name for name, _, _ in seen] == ["0", "2"]
    assert torch.equal(seen[0][1], X)
    assert not any(module._forward_hooks for module in subject.modules())


def test_an_unknown_layer_is_answered_with_the_nearest():
    named = nn.Sequential()
    named.add_module("stage1", nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"no layer called 'stage_1'\. Nearest: 'stage1'\."):
        refuse_unknown(named, ["stage_1"])
    with pytest.raises(ValueError, match="'input'"):
        refuse_unknown(named, ["inptu"], beside=("input",))
    refuse_unknown(named, ["input", "stage1"], beside=("input",))
