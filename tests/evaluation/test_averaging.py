"""Averaging over random draws: deterministic objectives are evaluated once, others are averaged."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
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


class RandomAdaptation(Defense):
    """Adapts to a randomly drawn net; `then` builds the adapted defense from that net."""

    random = True
    memory = "batch"

    def __init__(self, then: Any = Static) -> None:
        self.then = then

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.then(smooth(ctx.shared_seed() % 1000))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Static(NET).trace(x, ctx)


class Nested(Defense):
    """Draws in its own context and declares to be deterministic."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        inner = Context(ctx.keys)
        return Static(self.net).trace(x + 0 * inner.randn_like(x), inner)


class Far(Defense):
    """Draws only at points that are not clean images."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        away = (x.view(-1, *X.shape) - X).abs().amax() > 0.02  # whole copies of X
        return Static(self.net).trace(x + 0.1 * ctx.randn_like(x) if away else x, ctx)


class Backwards(Defense):
    """Draws only in its backward pass."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        noise = Context(ctx.keys)
        if x.requires_grad:
            x = x.clone()
            x.register_hook(lambda grad: grad * noise.randn_like(grad))
        return Static(self.net).trace(x, ctx)


class Rare(nn.Module):
    """Draws from a global generator without an effect on its output."""

    def forward(self, x: Tensor) -> Tensor:
        return NET(x) * (1.0 if torch.rand(()) < 2 else -1.0)


class Hiding(nn.Module):
    """Adds undeclared noise from a global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return NET(x + 0.1 * torch.randn_like(x))


def spent(
    adversary: Any, defense: Defense, draws: int = 2, queries: int | None = None
) -> tuple[Tensor, AttackContext]:
    context = AttackContext.open(Threat(SPACE, draws=draws, queries=queries), torch.arange(N), 0)
    return adversary.move(context, defense, X, Y).max_loss_point, context


@pytest.mark.parametrize(
    ("estimator", "reduced"),
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
def test_an_estimator_of_a_deterministic_objective_does_not_average_over_draws(
    estimator: Estimator, reduced: Estimator
) -> None:
    assert once(estimator) == reduced


def test_count_draws_counts_every_draw_and_nothing_else() -> None:
    with count_draws(CPU) as counted:
        random_keys = keys(4).fold_in(2)[torch.tensor([0, 3])].as_root()
    assert counted == []
    with count_draws(CPU) as counted:
        random_keys.uniform((3,))
        random_keys.batch_seed()
        random_keys.integers(5)
    assert counted == [3, 1, 1]
    random_keys.normal((2,))
    assert counted == [3, 1, 1]


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(1), random.random, numpy.random.rand],
    ids=["torch", "python", "numpy"],
)
def test_count_draws_detects_the_use_of_a_global_generator(draw: Any) -> None:
    with seeded_globals(0, CPU), count_draws(CPU) as counted:
        draw()
    assert counted == [1]


@pytest.mark.parametrize("attack", [PGD(STEPS, 0.03), APGD(STEPS)], ids=["pgd", "apgd"])
def test_a_deterministic_defense_is_not_averaged_after_a_check_of_two_evaluations(
    attack: Any,
) -> None:
    single, averaged = (replace(one, attack=attack) for one in (PLAIN, AVERAGED))
    found, context = spent(averaged, Static(NET))
    expected, usual = spent(single, Static(NET))
    assert torch.equal(found, expected)
    assert torch.equal(context.meter.forward, usual.meter.forward + 2)
    assert torch.equal(context.meter.backward, usual.meter.backward + 2)


@pytest.mark.parametrize(
    "defense",
    [Noisy(NET), Nested(NET), Plain(Hiding()), Plain(Rare()), Far(NET), Backwards(NET)],
    ids=["declared", "nested", "hidden", "rare", "far", "backwards"],
)
def test_a_randomized_defense_is_averaged_whatever_it_declares(defense: Defense) -> None:
    _, context = spent(AVERAGED, defense)
    checks = 0 if defense.random else 2
    assert context.meter.forward.tolist() == [checks + DRAWS * (STEPS + 1)] * N
    assert context.meter.backward.tolist() == [checks + DRAWS * STEPS] * N


def test_the_check_is_skipped_if_the_attack_needs_all_queries() -> None:
    # One gradient and one evaluation, each of two draws.
    once_only = replace(AVERAGED, attack=PGD(1), estimator=EoT(2))
    for queries, spends in ((4, 4), (5, 4), (6, 2 + 2)):
        _, context = spent(once_only, Static(NET), queries=queries)
        assert context.meter.forward.tolist() == [spends] * N
        assert context.meter.backward.tolist() == [2 if queries < 6 else 2 + 1] * N


@pytest.mark.parametrize("weighting", [AverageLoss(), MinLoss()], ids=lambda w: type(w).__name__)
def test_adapted_models_are_averaged_only_if_they_are_randomized(weighting: LossWeighting) -> None:
    """Ensembles of 1, 3 and 5 models; the adaptation is randomized, the adapted net need not be."""
    rounds = 3
    draws = 2
    gmsa = GreedyModelSpace("gmsa", AVERAGED, rounds, weighting)
    found, context = spent(gmsa, RandomAdaptation(), draws)
    expected, _ = spent(replace(gmsa, direct=PLAIN), RandomAdaptation(), draws)
    models = [1 + draws * i for i in range(rounds)]
    steps = [STEPS * weighting.step_factor(m) for m in models]
    assert (
        context.meter.forward.tolist()
        == [sum(m * (s + 1 + 2) for m, s in zip(models, steps, strict=True)) + draws * rounds] * N
    )
    assert torch.equal(found, expected)
    _, noisy = spent(gmsa, RandomAdaptation(Noisy), draws)
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
    [RandomAdaptation(), RandomAdaptation(Nested), RandomAdaptation(Noisy), Noisy(NET)],
    ids=["deterministic", "nested", "noisy", "plain"],
)
def test_the_stated_cost_is_never_exceeded(adversary: Any, defense: Defense) -> None:
    _, context = spent(adversary, defense)
    stated = adversary.cost(2)
    assert int(context.meter.forward.amax()) <= stated.forward
    assert int(context.meter.backward.amax()) <= stated.backward


@pytest.mark.parametrize("weighting", [AverageLoss(), MinLoss()], ids=lambda w: type(w).__name__)
def test_an_ensemble_has_the_same_value_with_and_without_gradient(weighting: LossWeighting) -> None:
    deterministic = AttackObjective([Static(smooth(3))], Y, cross_entropy, deterministic=True)
    randomized = AttackObjective([Noisy(NET)], Y, cross_entropy)
    ensemble = Ensemble((deterministic, randomized), weighting)
    assert ensemble.cost(EoT(4)) == 1 + 4
    assert ensemble.gradient_cost(EoT(4)) == (5, 5)
    evaluation = ensemble.evaluate(EoT(4), X, keys(N))
    result = ensemble.value_and_grad(EoT(4), X, keys(N))
    torch.testing.assert_close(evaluation.value, result.evaluation.value, rtol=0, atol=1e-14)
    assert torch.equal(evaluation.success, result.evaluation.success)
