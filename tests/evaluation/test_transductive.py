"""Attacks on defenses that adapt to their batch: identities, selection, randomness and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.evaluation.batch_problem import BATCH, NET, PGD5, SPACE, WEIGHTINGS, N, X, Y, context
from tests.problems import (
    Affine,
    Online,
    Shifted,
    Static,
    Transductive,
    keys,
    normal,
    smooth,
    uniform,
)
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.ensemble import Ensemble, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin, saturated
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import (
    AttackContext,
    CleanFallback,
    Direct,
    FixedPoint,
    GreedyModelSpace,
    Portfolio,
    RetrainedEnsemble,
    Skip,
    Threat,
    Transfer,
    high_confidence,
    play,
)


@pytest.mark.parametrize(
    "adversary",
    [
        FixedPoint("fpa", PGD5, 1),
        GreedyModelSpace("avg", PGD5, 1),
        GreedyModelSpace("min", PGD5, 1, MinLoss()),
    ],
    ids=lambda a: a.name,
)
@pytest.mark.parametrize(
    "defense", [BATCH, Online(NET, X.mean(0)), Static(NET)], ids=["batch", "stream", "static"]
)
def test_one_round_is_a_transfer_from_the_unadapted_defense_bit_for_bit(
    adversary: Any, defense: Defense
) -> None:
    base = Static(lambda x: NET(x - getattr(defense, "mu", 0)))
    episode, transfer = (
        play(defense, a, X, Y, Threat(SPACE), batch_size=6)
        for a in (adversary, Transfer(PGD5, base))
    )
    first = slice(0, 6)  # the online defense has another state in later batches
    assert torch.equal(episode.points[first], transfer.points[first])
    if defense.memory != "stream":
        assert torch.equal(episode.points, transfer.points)
        assert torch.equal(episode.correct, transfer.correct)


@dataclass(frozen=True)
class Fixed:
    needs = "decision"
    calls: int = 0

    def __call__(self, oracle: Any, center: Tensor, space: Any, keys: Any) -> AttackResult:
        return AttackResult(center, center)


def test_without_adaptation_every_round_attacks_the_same_net_and_more_rounds_break_more() -> None:
    attacked: list[int] = []

    @dataclass(frozen=True)
    class Watched(Direct):
        def against(self, models: Any, *rest: Any) -> AttackResult:
            attacked.append(len({id(model) for model in models}))
            return super().against(models, *rest)

    direct = Watched("pgd", PGD(steps=2, step_size=0.03), cross_entropy)
    for build in (
        lambda t: FixedPoint("fpa", direct, t),
        lambda t: GreedyModelSpace("avg", direct, t),
    ):
        correct = [
            float(play(Static(NET), build(t), X, Y, Threat(SPACE)).correct.sum())
            for t in range(1, 6)
        ]
        assert correct == sorted(correct, reverse=True)
    assert set(attacked) == {1}


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=["average", "minimum"])
def test_a_radius_of_zero_gives_the_clean_batch_and_the_clean_accuracy(
    weighting: LossWeighting,
) -> None:
    episode = play(BATCH, GreedyModelSpace("gmsa", PGD5, 3, weighting), X, Y, Threat(Linf(0.0)))
    assert torch.equal(episode.points, X)
    assert torch.equal(episode.correct[0] == 1, NET(X - X.mean(0)).argmax(1) == Y)


def test_the_batch_of_the_round_with_most_simulated_errors_is_proposed_as_a_whole() -> None:
    """Rows of different rounds are not combined: such a batch was never evaluated."""
    proposed: list[Tensor] = []
    chosen: list[int] = []

    class Recording(Transductive):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            proposed.append(x)
            return super().adapt(x, ctx)

    defense = Recording(NET, torch.zeros(6, dtype=torch.float64))
    for seed in range(6):
        proposed.clear()
        point = GreedyModelSpace("avg", PGD5, 4).move(context(seed=seed), defense, X, Y).point
        wrong = [int((NET(x - x.mean(0)).argmax(1) != Y).sum()) for x in proposed]
        assert len(proposed) == 4
        assert any(torch.equal(point, x) for x in proposed)
        best = next(k for k, x in enumerate(proposed) if torch.equal(point, x))
        assert wrong[best] == max(wrong)
        chosen.append(best)
    assert len(set(chosen)) > 1


class Retraining(Shifted):
    """An adaptation that depends on randomness and not on the batch."""

    random = True
    memory = "batch"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        shift = 0.3 * torch.randn(
            6,
            generator=torch.Generator().manual_seed(ctx.shared_seed() % 2**31),
            dtype=torch.float64,
        )
        return Shifted(self.net, shift)


class Wandering(Retraining):
    """The same, starting from its current state."""

    memory = "stream"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        moved = super().adapt(x, ctx)
        assert isinstance(moved, Shifted)
        return Wandering(self.net, 0.5 * self.mu + moved.mu + 0.2 * x.mean(0))


ADVERSARIES = [
    FixedPoint("fpa", PGD5, 3),
    GreedyModelSpace("avg", PGD5, 3),
    GreedyModelSpace("min", PGD5, 2, MinLoss()),
    RetrainedEnsemble("ensemble", PGD5, 4),
]


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda a: a.name)
def test_the_points_do_not_depend_on_private_randomness_of_the_defender(adversary: Any) -> None:
    zero = torch.zeros(6, dtype=torch.float64)
    for defense in (Retraining(NET, zero), Wandering(NET, zero)):
        threat = Threat(SPACE, state_visible=False)
        one, other = (
            play(defense, adversary, X, Y, threat, batch_size=4, defender_seed=s) for s in (5, 6)
        )
        assert torch.equal(one.points, other.points)
        assert not torch.equal(one.margin, other.margin)
    state_visible = [
        play(defense, adversary, X, Y, Threat(SPACE), batch_size=4, defender_seed=s).points
        for s in (5, 6)
    ]
    assert torch.equal(state_visible[0][:4], state_visible[1][:4])
    assert not torch.equal(state_visible[0][4:], state_visible[1][4:])
    public = [
        play(defense, adversary, X, Y, Threat(SPACE, randomness="public"), defender_seed=s).points
        for s in (5, 6)
    ]
    assert not torch.equal(*public)


def test_rounds_and_models_of_an_ensemble_have_independent_random_keys() -> None:
    shifts: list[Tensor] = []

    class Recording(Retraining):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            adapted = super().adapt(x, ctx)
            assert isinstance(adapted, Shifted)
            shifts.append(adapted.mu)
            return adapted

    defense = Recording(NET, torch.zeros(6, dtype=torch.float64))
    for adversary in (GreedyModelSpace("avg", PGD5, 4), RetrainedEnsemble("ensemble", PGD5, 4)):
        shifts.clear()
        adversary.move(context(), defense, X, Y)
        assert len({float(mu[0]) for mu in shifts}) == 4
    shifts.clear()
    GreedyModelSpace("avg", PGD5, 2).move(context(Threat(SPACE, draws=3)), defense, X, Y)
    assert len({float(mu[0]) for mu in shifts}) == 6  # three models a round


def test_an_ensemble_finds_points_that_transfer_to_a_model_drawn_afterwards() -> None:
    """Sixteen shifts from the distribution of the defender: their average is stronger than one."""
    defense = Retraining(NET, torch.zeros(6, dtype=torch.float64))
    threat = Threat(SPACE, draws=50)
    direct = Direct("pgd", PGD(steps=20, step_size=0.02), cross_entropy)
    transfer, ensemble = (
        float(play(defense, a, X, Y, threat).margin.mean())
        for a in (Transfer(direct, Static(NET)), RetrainedEnsemble("e", direct, 16))
    )
    assert ensemble > transfer


def test_the_clean_fallback_proposes_the_clean_batch_unless_there_are_more_errors() -> None:
    without_effect = GreedyModelSpace(
        "avg", Direct("still", PGD(steps=1, step_size=1e-9, random_start=False), cross_entropy), 1
    )
    for inner in (without_effect, GreedyModelSpace("avg", PGD5, 3)):
        fallback, plain = (
            play(BATCH, a, X, Y, Threat(SPACE)) for a in (CleanFallback(inner), inner)
        )
        broke = plain.correct.sum() < (NET(X - X.mean(0)).argmax(1) == Y).sum()
        assert torch.equal(fallback.points, plain.points if broke else X)
        assert not plain.copies.all()
    assert CleanFallback(without_effect).name == "avg (clean fallback)"


def test_skip_attacks_the_state_after_the_last_batch_and_needs_a_visible_state() -> None:
    defense = Online(NET, torch.zeros(6, dtype=torch.float64))
    skip = Skip(PGD5)
    episode = play(defense, skip, X, Y, Threat(SPACE), batch_size=6)
    mu = episode.points[:6].mean(0) / 2
    second = PGD5.move(
        AttackContext.open(Threat(SPACE), torch.arange(6, 12), 0), Shifted(NET, mu), X[6:], Y[6:]
    )
    assert torch.equal(episode.points[6:], second.max_loss_point)
    with pytest.raises(
        PermissionError, match="pgd-skip reads the defender's state, which this threat model hides"
    ):
        play(defense, skip, X, Y, Threat(SPACE, state_visible=False))


def test_a_portfolio_keeps_for_each_row_the_run_with_the_highest_confidence() -> None:
    runs = (Direct("ce", PGD(steps=3), cross_entropy), Direct("margin", PGD(steps=3), margin))
    models = [Static(smooth(s)) for s in (1, 5)]
    found = Portfolio("two", runs).against(models, context(), X, Y, MinLoss())
    single = [
        run.against(models, context().again(k), X, Y, MinLoss()).max_loss_point
        for k, run in enumerate(runs)
    ]

    def confidence(x: Tensor) -> Tensor:
        wrong = [d.net(x).softmax(1).scatter(1, Y[:, None], 0) for d in models]
        return torch.stack([p.amax(1) for p in wrong]).amin(0)

    better = confidence(single[0]) >= confidence(single[1])
    assert 0 < better.sum() < N
    assert torch.equal(found.max_loss_point, torch.where(better[:, None], *single))
    full = high_confidence(steps=2, step_size=0.05, targets=3)
    assert len(full.runs) == 8
    assert (
        GreedyModelSpace("gmsa", full, 2, MinLoss()).move(context(), BATCH, X, Y).point.shape
        == X.shape
    )
    with pytest.raises(ValueError, match="selects among no attacks"):
        Portfolio("none", ())


def test_attacks_without_rounds_or_models_raise_errors() -> None:
    for build in (lambda: GreedyModelSpace("g", PGD5, 0), lambda: FixedPoint("f", PGD5, 0)):
        with pytest.raises(ValueError, match="at least one round, got rounds=0"):
            build()
    with pytest.raises(ValueError, match="at least one model, got models=0"):
        RetrainedEnsemble("e", PGD5, 0)


def test_adaptation_undoes_an_attack_on_the_static_net_but_not_one_through_the_adaptation() -> None:
    """One label and a linear net: the static attack shifts all rows alike, the mean removes it."""
    linear = Affine.binary(torch.ones(6, dtype=torch.float64))  # the margin of label 0 is -sum x
    x = 0.5 + 0.02 * uniform(4, N, 6)
    y = torch.zeros(N, dtype=torch.long)
    defense = Transductive(linear, torch.full((6,), 0.5, dtype=torch.float64))
    static = play(
        defense,
        Direct("static", PGD(steps=20, step_size=0.01, random_start=False)),
        x,
        y,
        Threat(Linf(0.1)),
    )
    torch.testing.assert_close(static.points, x - 0.1)
    torch.testing.assert_close(static.margin[0], -(x - x.mean(0)).sum(1))
    z = uniform(11, 64, 6)
    labels = NET(z - z.mean(0)).argmax(1)
    unadapted, through = (
        play(
            BATCH,
            Direct("pgd", PGD(steps=20, step_size=0.02), saturated(margin), respond=respond),
            z,
            labels,
            Threat(SPACE),
        )
        for respond in (False, True)
    )
    assert through.correct.sum() < unadapted.correct.sum() - 5


def test_an_adapted_model_with_parameters_per_row_is_restricted_with_its_rows() -> None:
    class PerRow(Defense):
        def __init__(self, bias: Tensor) -> None:
            self.bias = bias

        def restrict(self, rows: Tensor) -> Defense:
            return PerRow(self.bias[rows])

        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x) + self.bias),))

    defense = PerRow(normal(8, N, 4))
    objective = AttackObjective([defense], Y, margin)
    rows = torch.tensor([7, 2, 5])
    torch.testing.assert_close(
        objective[rows](X[rows], keys(N)[rows]).value, objective(X, keys(N)).value[rows]
    )
    ensemble = Ensemble((objective, objective), MinLoss())
    torch.testing.assert_close(
        ensemble[rows](X[rows], keys(N)[rows]).value, ensemble(X, keys(N)).value[rows]
    )
