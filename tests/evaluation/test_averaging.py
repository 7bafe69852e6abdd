"""Averaging over coins where none are tossed: what is asked once, and what must not be."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from saddlepoint.audits.planning.cost import price
from tests.problems import Noisy, Static, keys, smooth, uniform
from torch import Tensor, nn

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.ensemble import AverageLoss, Ensemble, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Plain, Trace
from saddlepoint.evaluation import (
    AttackContext,
    Direct,
    FixedPoint,
    GreedyModelSpace,
    RetrainedEnsemble,
    Threat,
)
from saddlepoint.gradients import SPSA, Backprop, EoT, Estimator, FixedRandomness, Smoothed, once
from saddlepoint.rng import count_draws, seeded_globals

SPACE = Linf(0.1)
N = 6
STEPS = 3
DRAWS = 5
CPU = torch.device("cpu")
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PLAIN = Direct("pgd", PGD(STEPS, 0.03), cross_entropy)
AVERAGED = replace(PLAIN, estimator=EoT(DRAWS))


class Learner(Defense):
    """Turns into another net at each asking, by coins of the batch; `then` makes of that net the defense that answers."""

    random = True
    memory = "batch"

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
        inner = Context(ctx.keys)
        return Static(self.net).trace(x + 0 * inner.randn_like(x), inner)


class Far(Defense):
    """Tosses coins only at points that are no images."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        away = (x - X).abs().amax() > 0.02
        return Static(self.net).trace(x + 0.1 * ctx.randn_like(x) if away else x, ctx)


class Backwards(Defense):
    """Tosses coins for its gradient alone."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        noise = Context(ctx.keys)
        if x.requires_grad:
            x = x.clone()
            x.register_hook(lambda grad: grad * noise.randn_like(grad))
        return Static(self.net).trace(x, ctx)


class Rare(nn.Module):
    """A coin of a global generator that falls on its edge only."""

    def forward(self, x: Tensor) -> Tensor:
        return NET(x) * (1.0 if torch.rand(()) < 2 else -1.0)


class Hiding(nn.Module):
    """Noise of a global generator, which nobody declared."""

    def forward(self, x: Tensor) -> Tensor:
        return NET(x + 0.1 * torch.randn_like(x))


def spent(
    adversary: Any, defense: Defense, draws: int = 2, queries: int | None = None
) -> tuple[Tensor, AttackContext]:
    context = AttackContext.open(Threat(SPACE, draws=draws, queries=queries), torch.arange(N), 0)
    return adversary.move(context, defense, X, Y).max_loss_point, context


@pytest.mark.parametrize(
    ("estimator", "left"),
    [
        (Backprop(), Backprop()),
        (EoT(7), Backprop()),
        (EoT(3, EoT(4)), Backprop()),
        (EoT(1), EoT(1)),
        (EoT(3, SPSA(5)), EoT(3, SPSA(5))),
        (EoT(3, Smoothed(2)), EoT(3, Smoothed(2))),
        (FixedRandomness(EoT(2)), FixedRandomness()),
        (Smoothed(4, inner=EoT(2)), Smoothed(4)),
    ],
    ids=repr,
)
def test_what_is_left_of_an_estimator_where_no_coins_are_tossed(
    estimator: Estimator, left: Estimator
) -> None:
    assert once(estimator) == left


def test_tosses_hear_every_draw_and_nothing_else() -> None:
    with count_draws(CPU) as heard:
        query_budget = keys(4).fold_in(2)[torch.tensor([0, 3])].root()
    assert heard == []
    with count_draws(CPU) as heard:
        query_budget.uniform((3,))
        query_budget.batch_seed()
        query_budget.integers(5)
    assert heard == [3, 1, 1]
    query_budget.normal((2,))
    assert heard == [3, 1, 1]


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(1), random.random, numpy.random.rand],
    ids=["torch", "python", "numpy"],
)
def test_tosses_hear_that_a_global_generator_was_used(draw: Any) -> None:
    with seeded_globals(0, CPU), count_draws(CPU) as heard:
        draw()
    assert heard == [1]


@pytest.mark.parametrize("attack", [PGD(STEPS, 0.03), APGD(STEPS)], ids=["pgd", "apgd"])
def test_a_defense_without_coins_is_asked_once_for_two_looks_and_found_the_same_points(
    attack: Any,
) -> None:
    single, averaged = (replace(one, attack=attack) for one in (PLAIN, AVERAGED))
    (found, context) = spent(averaged, Static(NET))
    (want, usual) = spent(single, Static(NET))
    assert torch.equal(found, want)
    assert torch.equal(context.meter.forward, usual.meter.forward + 2)
    assert torch.equal(context.meter.backward, usual.meter.backward + 2)


@pytest.mark.parametrize(
    "defense",
    [Noisy(NET), Nested(NET), Plain(Hiding()), Plain(Rare()), Far(NET), Backwards(NET)],
    ids=["declared", "nested", "hidden", "rare", "far", "backwards"],
)
def test_a_defense_with_coins_is_averaged_whatever_it_says(defense: Defense) -> None:
    _, context = spent(AVERAGED, defense)
    looks = 0 if defense.random else 2
    assert context.meter.forward.tolist() == [looks + DRAWS * (STEPS + 1)] * N
    assert context.meter.backward.tolist() == [looks + DRAWS * STEPS] * N


def test_looks_are_not_bought_with_queries_that_the_attack_needs() -> None:
    once_only = replace(
        AVERAGED, attack=PGD(1), estimator=EoT(2)
    )  # a slope and a reading, each of two draws
    for queries, spends in ((4, 4), (5, 4), (6, 2 + 2)):
        _, context = spent(once_only, Static(NET), queries=queries)
        assert context.meter.forward.tolist() == [spends] * N
        assert context.meter.backward.tolist() == [2 if queries < 6 else 2 + 1] * N


@pytest.mark.parametrize("over", [AverageLoss(), MinLoss()], ids=lambda over: type(over).__name__)
def test_models_that_a_learner_became_are_averaged_only_if_they_toss_coins(
    over: LossWeighting,
) -> None:
    """Pools of 1, 3 and 5 models; learning tosses coins, and the net that came of it need not."""
    rounds = 3
    draws = 2
    gmsa = GreedyModelSpace("gmsa", AVERAGED, rounds, over)
    (found, context) = spent(gmsa, Learner(), draws)
    (want, _) = spent(replace(gmsa, direct=PLAIN), Learner(), draws)
    models = [1 + draws * i for i in range(rounds)]
    steps = [STEPS * over.step_factor(m) for m in models]
    assert (
        context.meter.forward.tolist()
        == [sum(m * (s + 1 + 2) for m, s in zip(models, steps, strict=True)) + draws * rounds] * N
    )
    assert torch.equal(found, want)
    _, noisy = spent(gmsa, Learner(Noisy), draws)
    due = (
        sum((1 + DRAWS * (m - 1)) * (s + 1) + 2 for m, s in zip(models, steps, strict=True))
        + draws * rounds
    )
    assert noisy.meter.forward.tolist() == [due] * N


@pytest.mark.parametrize(
    "adversary",
    [
        AVERAGED,
        GreedyModelSpace("gmsa", AVERAGED, 3),
        FixedPoint("fpa", AVERAGED, 3),
        RetrainedEnsemble("again", AVERAGED, 4),
    ],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize(
    "defense",
    [Learner(), Learner(Nested), Learner(Noisy), Noisy(NET)],
    ids=["sure", "nested", "noisy", "plain"],
)
def test_the_price_is_never_exceeded(adversary: Any, defense: Defense) -> None:
    _, context = spent(adversary, defense)
    stated = price(adversary, 2)
    assert int(context.meter.forward.amax()) <= stated.forward
    assert int(context.meter.backward.amax()) <= stated.backward


@pytest.mark.parametrize("over", [AverageLoss(), MinLoss()], ids=lambda over: type(over).__name__)
def test_a_pool_of_both_kinds_reads_as_its_slope_does(over: LossWeighting) -> None:
    sure = AttackObjective([Static(smooth(3))], Y, cross_entropy, sure=True)
    pool = Ensemble((sure, AttackObjective([Noisy(NET)], Y, cross_entropy)), over)
    assert pool.cost(EoT(4)) == 1 + 4
    assert pool.gradient_cost(EoT(4)) == (5, 5)
    evaluation = pool.evaluate(EoT(4), X, keys(N))
    slope = pool.value_and_grad(EoT(4), X, keys(N))
    torch.testing.assert_close(evaluation.value, slope.evaluation.value, rtol=0, atol=1e-14)
    assert torch.equal(evaluation.success, slope.evaluation.success)
