"""Averaging over coins where none are tossed: what is asked once, and what must not be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from problems import Noisy, Static, coins, smooth, uniform
from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.pgd import PGD
from saddlepoint.attack.pool import AverageLoss, LeastLoss, Over, Pool
from saddlepoint.attack.space import Linf
from saddlepoint.auditing.price import price
from saddlepoint.coins import tosses
from saddlepoint.defense import Context, Defense, Plain, Trace
from saddlepoint.game import Direct, FixedPoint, GreedyModelSpace, Retrained, Threat, Turn
from saddlepoint.gradients import SPSA, Backprop, EoT, Estimator, FixedCoins, Smoothed, once

SPACE, N, STEPS, DRAWS = Linf(0.1), 6, 3, 5
X, NET = uniform(0, N, 6), smooth(1)
Y = NET(X).argmax(1)
PLAIN = Direct("pgd", PGD(STEPS, 0.03), cross_entropy)
AVERAGED = replace(PLAIN, estimator=EoT(DRAWS))


class Learner(Defense):
    """Turns into another net at each asking, by coins of the batch; `then` makes of that net the defence that answers."""

    random, memory = True, "batch"

    def __init__(self, then: Any = Static) -> None:
        self.then = then

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.then(smooth(ctx.shared_seed() % 1000))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Static(NET).trace(x, ctx)


class Nested(Defense):
    """Tosses its coins in a context of its own, and says that it tosses none."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        inner = Context(ctx.coins)
        return Static(self.net).trace(x + 0 * inner.randn_like(x), inner)


class Hiding(nn.Module):
    """Noise of a global generator, which nobody declared."""

    def forward(self, x: Tensor) -> Tensor:
        return NET(x + 0.1 * torch.randn_like(x))


def spent(adversary: Any, defense: Defense, draws: int = 2, queries: int | None = None) -> tuple[Tensor, Turn]:
    turn = Turn.open(Threat(SPACE, draws=draws, queries=queries), torch.arange(N), 0)
    return adversary.move(turn, defense, X, Y).peak, turn


@pytest.mark.parametrize(
    ("estimator", "left"),
    [
        (Backprop(), Backprop()),
        (EoT(7), Backprop()),
        (EoT(3, EoT(4)), Backprop()),
        (EoT(1), EoT(1)),
        (EoT(3, SPSA(5)), EoT(3, SPSA(5))),
        (EoT(3, Smoothed(2)), EoT(3, Smoothed(2))),
        (FixedCoins(EoT(2)), FixedCoins()),
        (Smoothed(4, inner=EoT(2)), Smoothed(4)),
    ],
    ids=repr,
)
def test_what_is_left_of_an_estimator_where_no_coins_are_tossed(estimator: Estimator, left: Estimator) -> None:
    assert once(estimator) == left


def test_tosses_hear_every_draw_and_nothing_else() -> None:
    with tosses() as heard:
        purse = coins(4).fold(2)[torch.tensor([0, 3])].unfold()
    assert heard == []
    with tosses() as heard:
        purse.uniform((3,))
        purse.shared()
        purse.integers(5)
    assert heard == [3, 1, 1]
    purse.normal((2,))
    assert heard == [3, 1, 1]


@pytest.mark.parametrize("attack", [PGD(STEPS, 0.03), APGD(STEPS)], ids=["pgd", "apgd"])
def test_a_defence_without_coins_is_asked_once_for_two_looks_and_found_the_same_points(attack: Any) -> None:
    single, averaged = (replace(one, attack=attack) for one in (PLAIN, AVERAGED))
    (found, turn), (want, usual) = spent(averaged, Static(NET)), spent(single, Static(NET))
    assert torch.equal(found, want)
    assert torch.equal(turn.meter.forward, usual.meter.forward + 2)
    assert torch.equal(turn.meter.backward, usual.meter.backward)


@pytest.mark.parametrize("defense", [Noisy(NET), Nested(NET), Plain(Hiding())], ids=["declared", "nested", "hidden"])
def test_a_defence_with_coins_is_averaged_whatever_it_says(defense: Defense) -> None:
    _, turn = spent(AVERAGED, defense)
    looks = 0 if defense.random else 2
    assert turn.meter.forward.tolist() == [looks + DRAWS * (STEPS + 1)] * N
    assert turn.meter.backward.tolist() == [DRAWS * STEPS] * N


def test_looks_are_not_bought_with_queries_that_are_not_there() -> None:
    _, turn = spent(replace(AVERAGED, attack=PGD(1), estimator=EoT(2)), Static(NET), queries=5)
    assert turn.meter.forward.tolist() == [2 + 2] * N
    goal = AVERAGED._looked_at(Goal([Static(NET)], Y), Turn.open(Threat(SPACE, queries=1), torch.arange(N), 0), X)
    assert not goal.sure


@pytest.mark.parametrize("over", [AverageLoss(), LeastLoss()], ids=lambda over: type(over).__name__)
def test_models_that_a_learner_became_are_averaged_only_if_they_toss_coins(over: Over) -> None:
    """Pools of 1, 3 and 5 models; learning tosses coins, and the net that came of it need not."""
    rounds, draws = 3, 2
    gmsa = GreedyModelSpace("gmsa", AVERAGED, rounds, over)
    (found, turn), (want, _) = spent(gmsa, Learner(), draws), spent(replace(gmsa, direct=PLAIN), Learner(), draws)
    models = [1 + draws * i for i in range(rounds)]
    steps = [STEPS * over.patience(m) for m in models]
    assert turn.meter.forward.tolist() == [sum(m * (s + 1 + 2) for m, s in zip(models, steps, strict=True)) + draws * rounds] * N
    assert torch.equal(found, want)
    _, noisy = spent(gmsa, Learner(Noisy), draws)
    due = sum((1 + DRAWS * (m - 1)) * (s + 1) + 2 for m, s in zip(models, steps, strict=True)) + draws * rounds
    assert noisy.meter.forward.tolist() == [due] * N


@pytest.mark.parametrize(
    "adversary",
    [AVERAGED, GreedyModelSpace("gmsa", AVERAGED, 3), FixedPoint("fpa", AVERAGED, 3), Retrained("again", AVERAGED, 4)],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize(
    "defense", [Learner(), Learner(Nested), Learner(Noisy), Noisy(NET)], ids=["sure", "nested", "noisy", "plain"]
)
def test_the_price_is_never_exceeded(adversary: Any, defense: Defense) -> None:
    _, turn = spent(adversary, defense)
    stated = price(adversary, 2)
    assert int(turn.meter.forward.amax()) <= stated.forward
    assert int(turn.meter.backward.amax()) <= stated.backward


@pytest.mark.parametrize("over", [AverageLoss(), LeastLoss()], ids=lambda over: type(over).__name__)
def test_a_pool_of_both_kinds_reads_as_its_slope_does(over: Over) -> None:
    sure = Goal([Static(smooth(3))], Y, cross_entropy, sure=True)
    pool = Pool((sure, Goal([Noisy(NET)], Y, cross_entropy)), over)
    assert pool.cost(EoT(4)) == 1 + 4
    assert pool.slope_cost(EoT(4)) == (5, 5)
    reading, slope = pool.read(EoT(4), X, coins(N)), pool.slope(EoT(4), X, coins(N))
    torch.testing.assert_close(reading.value, slope.reading.value, rtol=0, atol=1e-14)
    assert torch.equal(reading.success, slope.reading.success)
