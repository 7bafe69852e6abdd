"""A folded net has channels last where that is known to be faster."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from saddlepoint.engine import equal_form
from saddlepoint.engine.forms import one_pass

X = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def net(*, groups=1, width=16, norm=nn.Identity):
    torch.manual_seed(0)
    first = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
    second = nn.Conv2d(width, width, 3, 2, groups=groups), norm(), nn.ReLU()
    made = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(9 * width, 4)).eval()
    nn.init.uniform_(made[1].running_mean, -1, 1)
    nn.init.uniform_(made[1].running_var, 0.5, 2)
    return made


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "folded, channels-last"),
        ({"groups": 16}, "folded"),
        ({"width": 4}, "folded"),
        ({"norm": lambda: nn.GroupNorm(4, 16)}, "folded"),
    ],
    ids=["ordinary", "groups", "narrow", "another normalization"],
)
def test_the_layout_follows_from_the_layers(changes, expected):
    given = net(**changes)
    prepared = equal_form(given, X)
    assert (prepared.choice, prepared.reason) == (expected, "1 layer folded")
    for found, wanted in zip(one_pass(prepared.net, X), one_pass(given, X), strict=True):
        assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_layout_can_be_demanded():
    assert equal_form(net(groups=16), X, channels_last=True).choice == "folded, channels-last"


def test_a_copy_that_differs_in_this_layout_keeps_the_usual_one(monkeypatch):
    class Wrong(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + 0.01

    monkeypatch.setattr("saddlepoint.engine.forms.ChannelsLast", Wrong)
    assert equal_form(net(), X).choice == "folded"
