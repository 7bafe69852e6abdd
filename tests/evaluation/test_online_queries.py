"""Queries of an attacker change an online defense, and only they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.evaluation.stream_problem import NET, PGD3, SPACE, ZERO, N, X, Y
from tests.problems import Noisy, Online, Static
from torch import Tensor, nn

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Context, Defense, Plain, Trace
from saddlepoint.evaluation import (
    Direct,
    FixedPoints,
    Restarts,
    Threat,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class RepeatedQueries:
    """Queries the clean batch several times."""

    times: int
    coupled: list[bool]
    calls: int = 0
    needs = "score"

    def __call__(self, oracle: Any, center: Tensor, space: Any, keys: Keys) -> AttackResult:
        self.coupled.append(oracle.coupled)
        for _ in range(self.times):
            oracle.score(center)
        return AttackResult(center, center)


def test_an_online_defense_adapts_to_online_queries_and_not_to_simulated_ones() -> None:
    """mu <- (mu + mean x) / 2 from zero: after k batches of one mean it is (1 - 2^-k) of it."""
    states: list[Tensor] = []

    class Watched(Online):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            states.append((self.mu + x.mean(0)) / 2)
            return Watched(self.net, states[-1])

    coupled: list[bool] = []
    # The evaluation alone, or three queries and the evaluation.
    for online, batches in ((False, 1), (True, 4)):
        play(
            Watched(NET, ZERO),
            Direct("queries", RepeatedQueries(3, coupled)),
            X,
            Y,
            Threat(SPACE, "score", online_queries=online),
        )
        torch.testing.assert_close(states[-1], X.mean(0) * (1 - 0.5**batches))
    assert coupled == [False, True]  # the defense adapts to an online query as a whole
    with pytest.raises(PermissionError, match="pgd needs gradient access"):
        play(Online(NET, ZERO), PGD3, X, Y, Threat(SPACE, "score", online_queries=True))


def test_simulations_of_an_adversary_are_online_queries_too() -> None:
    """Three restarts, each with one query and one simulation of its point, then the evaluation."""
    states: list[Tensor] = []

    class Watched(Online):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            states.append((self.mu + x.mean(0)) / 2)
            return Watched(self.net, states[-1])

    threat = Threat(SPACE, "score", online_queries=True)
    adversary = Restarts(Direct("queries", RepeatedQueries(1, [])), 3)
    play(Watched(NET, ZERO), adversary, X, Y, threat)
    assert len(states) == 3 * 2 + 1
    torch.testing.assert_close(states[-1], X.mean(0) * (1 - 0.5**7))


def test_a_black_box_attack_queries_the_online_defense_batch_by_batch() -> None:
    threat = Threat(SPACE, "score", online_queries=True)
    images = X.view(N, 1, 2, 3)
    episode = play(
        Online(NET, torch.zeros(1, 2, 3)),
        Direct("square", Square(queries=8)),
        images,
        Y,
        threat,
        batch_size=8,
    )
    assert threat.space.contains(episode.points, images).all()
    assert episode.forward.amax() <= 8


def test_every_online_query_has_new_random_keys() -> None:
    drawn: list[Tensor] = []

    class Recording(Noisy):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            drawn.append(ctx.randn_like(x))
            return Static(self.net).trace(x, ctx)

    play(
        Recording(NET),
        Direct("queries", RepeatedQueries(4, [])),
        X,
        Y,
        Threat(SPACE, "score", online_queries=True, randomness="fixed"),
    )
    assert len({float(noise[0, 0]) for noise in drawn[:4]}) == 4


class AdaptsInPlace(Defense):
    """Changes itself when it adapts, in one of several ways."""

    memory = "batch"

    def __init__(self, how: str) -> None:
        self.how = how
        self.net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double().eval()
        self.seen = 0
        self.known = torch.zeros(3)
        self.inner = Plain(self.net)

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        if self.how == "weights":
            with torch.no_grad():
                self.net[0].weight += 0.1
        elif self.how == "data":
            self.net[0].bias.data.add_(0.1)
        elif self.how == "statistics":
            self.net.train()
            self.net(x)
            self.net.eval()
        elif self.how == "mode":
            self.net.train()
        elif self.how == "frozen":
            self.net.requires_grad_(False)
        elif self.how == "counter":
            self.seen += 1
        elif self.how == "tensor":
            self.known.add_(1)
        return Plain(self.net)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return self.inner.trace(x, ctx)


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("weights", "net.0.weight"),
        ("data", "net.0.bias"),
        ("statistics", "net.1.running_mean"),
        ("mode", "net.training"),
        ("frozen", "net.0.weight"),
        ("counter", "AdaptsInPlace.seen"),
        ("tensor", "AdaptsInPlace.known"),
    ],
)
def test_a_defense_that_changes_itself_raises_an_error_that_names_the_changed_value(
    how: str, place: str
) -> None:
    with pytest.raises(
        ValueError,
        match=rf"adapt\(\) changed the defense itself \(.*{place}.*expected a new object",
    ):
        play(AdaptsInPlace(how), FixedPoints(), X, Y, Threat(SPACE))


def test_a_defense_that_returns_a_new_object_is_accepted() -> None:
    assert play(AdaptsInPlace("not at all"), FixedPoints(), X, Y, Threat(SPACE)).correct.shape == (
        1,
        N,
    )
