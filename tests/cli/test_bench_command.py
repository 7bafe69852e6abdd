"""`saddlepoint bench` compares attacks with a bare loop on the user's own network."""

from __future__ import annotations

import json

import torch
from tests.cli.commands import call, error_of

from saddlepoint.attacks.spaces import Linf
from saddlepoint.cli import bench_run
from saddlepoint.cli.bench_run import Job, measure

WORDS = ("bench", "zoo:digits-pgd", "--n", "8", "--steps", "3", "--rounds", "2")


def test_both_attacks_have_a_ratio_with_its_range():
    record = json.loads(call(*WORDS, "--json").stdout)
    assert record["threat"] == "Linf radius 8/255"
    assert {one["attack"] for one in record["ratios"]} == {"PGD", "APGD"}
    for one in record["ratios"]:
        assert 0 < one["lowest"] <= one["median"] <= one["highest"]
    text = call(*WORDS, "--norm", "l2").stdout
    assert "saddlepoint" in text
    assert "L2 radius 0.5" in text


def test_the_bare_loop_and_our_attacks_make_the_same_passes(monkeypatch):
    monkeypatch.setattr(bench_run, "_peers", lambda job, attack: ())
    calls = []

    class Net(torch.nn.Module):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return x.flatten(1)

    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    job = Job(Net(), x, torch.zeros(4, dtype=torch.long), Linf(0.1), steps=5, rounds=1)
    assert [one.attack for one in measure(job)] == ["PGD", "APGD"]
    # Per attack: a first run, the bare loop and the measured run, each five gradients and one
    # evaluation.
    assert calls == 2 * 3 * [*[True] * 5, False]


def test_targets_that_are_no_networks_are_refused():
    assert "--profile" in error_of("bench", "zoo:digits-anti-adversary", "--n", "4")
