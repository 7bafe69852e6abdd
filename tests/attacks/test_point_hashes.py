"""Hashes of points notice a change of any attack."""

from __future__ import annotations

import torch
from benchmarks import point_hashes
from benchmarks.loops import Problem
from benchmarks.point_hashes import differences, hashes
from torch import nn

import saddlepoint as sp


def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    x = torch.rand(4, 3, 2, 2)
    return Problem("net", net, x, net(x).argmax(1), (sp.Linf(0.1), sp.L2(0.3)))


def test_hashes_notice_another_step_size(monkeypatch):
    monkeypatch.setattr(point_hashes, "ATTACKS", (sp.PGD(3),))
    before = hashes(problem())
    assert len(before) == 10
    assert differences(hashes(problem()), before) == []
    monkeypatch.setattr(sp.PGD, "step_length", lambda self, space: 0.1 * space.radius)
    assert differences(hashes(problem()), before) == list(before)
