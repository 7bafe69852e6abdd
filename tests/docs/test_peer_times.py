"""Times beside peers: ratios by peer, and the fastest one."""

from __future__ import annotations

import pytest
import torch
from benchmarks import peer_times
from benchmarks.peer_times import beside_peers, peer_runs
from tests.references import peers
from torch import nn


def test_the_fastest_peer_is_the_one_to_which_our_time_is_largest(monkeypatch):
    times = {"ours": iter([2.0, 3.0, 2.0]), "slow": iter([4.0] * 3), "fast": iter([2.0] * 3)}
    monkeypatch.setattr(peer_times, "seconds", lambda run: next(times[run()]))
    found = beside_peers(lambda: "ours", {"slow": lambda: "slow", "fast": lambda: "fast"}, 3)
    assert found == {
        "fastest": "fast",
        "ratio": 1.0,
        "ratios": {"slow": [0.5, 0.5, 0.75], "fast": [1.0, 1.0, 1.5]},
    }


def test_no_peer_has_pgd_in_l1():
    net = nn.Flatten()
    assert peer_runs("pgd-l1", net, torch.rand(2, 1, 2, 2), torch.zeros(2).long(), 1.0, 2) == {}


@pytest.mark.parametrize("peer", list(peers.ATTACKS["apgd-ce-l1"]))
def test_peers_run_apgd_in_l1(peer):
    reason = peers.why_missing(peer)
    if reason is not None:
        pytest.skip(reason)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    x = torch.rand(4, 3, 2, 2)
    runs = peer_runs("apgd-ce-l1", net, x, net(x).argmax(1), 2.0, 10)
    points = runs[peer]()
    assert points.shape == x.shape
    assert ((points - x).flatten(1).abs().sum(1) <= 2.0 + 1e-4).all()
