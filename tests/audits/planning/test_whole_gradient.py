"""A part of a gradient that code cuts on purpose is used by further attacks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.gradients import BPDA

N = 32
X = 0.3 + 0.4 * torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(0))
W = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))
SMALL = 0.15  # weight of the detached stream: the rest of the gradient agrees with differences


class TwoStreams(nn.Module):
    """W_1 x + SMALL W_2 x; `cut` is applied to the second stream."""

    def __init__(self, cut):
        super().__init__()
        self.cut = cut
        self.streams = nn.Parameter(W.clone())

    def forward(self, x):
        pixels = x.flatten(1) - 0.5
        z = pixels @ self.streams[0] + SMALL * self.cut(pixels @ self.streams[1])
        return torch.stack([-z, z], 1)


def under_no_grad(x):
    with torch.no_grad():
        return 1.0 * x


def plan_of(net):
    y = net(X).argmax(1)
    return prepare(AuditRequest(net.eval(), X, y, sp.Threat(sp.Linf(0.02)), allow_unusual=True))


@pytest.mark.parametrize("cut", [lambda x: x.detach(), lambda x: x.data, under_no_grad])
def test_attacks_also_follow_the_whole_gradient(cut):
    plan = plan_of(TwoStreams(cut))
    (choice,) = [choice for choice in plan.choices if choice.name == "apgd-whole"]
    assert "test_whole_gradient.py" in choice.reason
    assert all(isinstance(rule, BPDA) for rule in choice.adversary.rules.values())
    others = [choice.adversary for choice in plan.choices if choice.name == "apgd-ce"]
    assert not others[0].rules


@pytest.mark.parametrize("cut", [lambda x: x, lambda x: x + 0 * x.mean().detach()])
def test_nothing_is_added_where_nothing_is_cut(cut):
    assert not [
        one for one in plan_of(TwoStreams(cut)).choices if one.name.startswith("apgd-whole")
    ]
