"""Attacks on defenses that learn from their batch: identities of the greedy model space, and what it holds in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.problems import (
    Affine,
    Centring,
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

from saddlepoint.attacks.base import longer
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.ensemble import AverageLoss, Ensemble, LossWeighting, MinLoss
from saddlepoint.attacks.losses import cross_entropy, margin, saturated
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.attacks.square import Square
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
from saddlepoint.gradients import Backprop

SPACE = Linf(0.1)
N = 12
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD5 = Direct("pgd", PGD(steps=5, step_size=0.03), cross_entropy)
BATCH = Transductive(NET, torch.zeros(6, dtype=torch.float64))
OVERS: list[LossWeighting] = [AverageLoss(), MinLoss()]


def sub_context(threat: Threat | None = None, n: int = N, seed: int = 0) -> AttackContext:
    return AttackContext.open(threat or Threat(SPACE), torch.arange(n), seed)


def objectives(*nets: Any, y: Tensor = Y, loss: Any = cross_entropy) -> tuple[AttackObjective, ...]:
    return tuple(AttackObjective([Static(net)], y, loss) for net in nets)


# ---- identities ----------------------------------------------------------------------------------------------------------------


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
def test_one_round_is_a_transfer_from_the_defense_as_it_stands_bit_for_bit(
    adversary: Any, defense: Defense
) -> None:
    base = Static(lambda x: NET(x - getattr(defense, "mu", 0)))
    episode, transfer = (
        play(defense, a, X, Y, Threat(SPACE), batch_size=6)
        for a in (adversary, Transfer(PGD5, base))
    )
    first = slice(0, 6)  # later batches meet another state of the online defense
    assert torch.equal(episode.points[first], transfer.points[first])
    if defense.memory != "stream":
        assert torch.equal(episode.points, transfer.points)
        assert torch.equal(episode.correct, transfer.correct)


@pytest.mark.parametrize("over", OVERS, ids=["average", "least"])
def test_a_pool_of_one_model_is_that_model(over: LossWeighting) -> None:
    defense = Static(NET)
    alone = PGD5.move(sub_context(), defense, X, Y)
    pooled = PGD5.against([defense], sub_context(), X, Y, over)
    assert torch.equal(alone.max_loss_point, pooled.max_loss_point)
    single = Ensemble(objectives(NET), over).value_and_grad(Backprop(), X, keys(N))
    plain = Backprop().value_and_grad(objectives(NET)[0], X, keys(N))
    assert torch.equal(single.grad, plain.grad)
    assert torch.equal(single.evaluation.value, plain.evaluation.value)


def test_duplicates_leave_the_average_as_it_is_and_double_the_steps_of_the_least() -> None:
    defense = Static(NET)
    (single, double) = (sub_context(), sub_context())
    alone = PGD5.against([defense], single, X, Y).max_loss_point
    assert torch.equal(alone, PGD5.against([defense, defense], double, X, Y).max_loss_point)
    assert single.meter.forward.tolist() == [6] * N
    assert double.meter.forward.tolist() == [12] * N  # two models at each of six looks
    lasting = PGD5.scaled(MinLoss().step_factor(2))
    assert isinstance(lasting.attack, PGD)
    assert (lasting.attack.steps, lasting.attack.step_size) == (10, 0.03)
    assert AverageLoss().step_factor(7) == 1
    assert longer(Square(queries=30), 3) == Square(queries=90)
    with pytest.raises(TypeError, match="has neither a field `steps` nor `queries`"):
        longer(Fixed(), 2)


@dataclass(frozen=True)
class Fixed:
    needs = "decision"
    calls: int = 0

    def __call__(self, oracle: Any, center: Tensor, space: Any, keys: Any) -> AttackResult:
        return AttackResult(center, center)


def test_where_learning_changes_nothing_every_round_attacks_the_same_net_and_more_rounds_never_help_the_defender() -> (
    None
):
    attacked: list[int] = []

    @dataclass(frozen=True)
    class Watched(Direct):
        def against(self, pool: Any, *rest: Any) -> AttackResult:
            attacked.append(len({id(model) for model in pool}))
            return super().against(pool, *rest)

    direct = Watched("pgd", PGD(steps=2, step_size=0.03), cross_entropy)
    for build in (
        lambda t: FixedPoint("fpa", direct, t),
        lambda t: GreedyModelSpace("avg", direct, t),
    ):
        right = [
            float(play(Static(NET), build(t), X, Y, Threat(SPACE)).correct.sum())
            for t in range(1, 6)
        ]
        assert right == sorted(right, reverse=True)
    assert set(attacked) == {1}


@pytest.mark.parametrize("over", OVERS, ids=["average", "least"])
def test_a_radius_of_zero_leaves_the_clean_batch_and_the_clean_accuracy(
    over: LossWeighting,
) -> None:
    episode = play(BATCH, GreedyModelSpace("gmsa", PGD5, 3, over), X, Y, Threat(Linf(0.0)))
    assert torch.equal(episode.points, X)
    assert torch.equal(episode.correct[0] == 1, NET(X - X.mean(0)).argmax(1) == Y)


def test_the_least_loss_is_at_most_the_average_which_is_at_most_the_greatest() -> None:
    nets = [smooth(seed) for seed in (1, 5, 9)]
    values = torch.stack([cross_entropy(net(X), Y) for net in nets])
    average, least = (Ensemble(objectives(*nets), over)(X, keys(N)).value for over in OVERS)
    assert (least <= average + 1e-12).all()
    assert (average <= values.amax(0) + 1e-12).all()
    torch.testing.assert_close(least, values.amin(0), rtol=0, atol=0)
    torch.testing.assert_close(average, values.mean(0))


def test_the_gradient_of_the_least_is_that_of_the_model_with_the_least_loss() -> None:
    nets = [smooth(seed) for seed in (1, 5, 9)]
    each = [Backprop().value_and_grad(objective, X, keys(N)) for objective in objectives(*nets)]
    least = torch.stack([slope.evaluation.value for slope in each]).argmin(0)
    assert len(set(least.tolist())) > 1
    slope = Ensemble(objectives(*nets), MinLoss()).value_and_grad(Backprop(), X, keys(N))
    wanted = torch.stack([s.grad for s in each])[least, torch.arange(N)]
    assert torch.equal(slope.grad, wanted)


@pytest.mark.parametrize("over", OVERS, ids=["average", "least"])
def test_model_by_model_the_gradient_is_that_of_the_whole_objective_even_where_rows_are_coupled(
    over: LossWeighting,
) -> None:
    pool = Ensemble(
        tuple(AttackObjective([Centring(smooth(s))], Y, cross_entropy) for s in (1, 5)),
        over,
        coupled=True,
    )
    x = X.clone().requires_grad_()
    (whole,) = torch.autograd.grad(pool(x, keys(N)).value.sum(), x)
    slope = pool.value_and_grad(Backprop(), X, keys(N))
    torch.testing.assert_close(slope.grad, whole)
    torch.testing.assert_close(slope.evaluation.value, pool(X, keys(N)).value)
    assert pool.gradient_cost(Backprop()) == ((4, 2) if over.needs_all_losses else (2, 2))


def test_a_pool_is_fooled_where_all_its_models_are_and_facets_combine_class_by_class() -> None:
    nets = [smooth(seed) for seed in (1, 5)]
    pool = Ensemble(objectives(*nets, loss=margin), MinLoss())
    wrong = torch.stack([net(X).argmax(1) != Y for net in nets])
    assert torch.equal(pool(X, keys(N)).success, wrong.all(0))
    assert wrong.any(0).sum() > wrong.all(0).sum()
    class_margins = pool.class_margin_gradients(Backprop(), X, keys(N))
    each = torch.stack(
        [
            Backprop().value_and_grad(objective.class_margins, X, keys(N)).evaluation.value
            for objective in pool.objectives
        ]
    )
    torch.testing.assert_close(class_margins.evaluation.value, each.amin(0))
    assert class_margins.grad.shape == (3, N, 6)


def test_no_more_than_one_models_activations_are_held_at_a_time() -> None:
    """Bytes saved for backward passes that still live, at their highest: ten models need what one does, within the gradients."""
    weights = [(normal(k, 64, 6), normal(k + 50, 4, 64)) for k in range(10)]

    def wide(w: Tensor, v: Tensor) -> Any:
        return lambda x: ((x @ w.T).tanh().sin().tanh()) @ v.T

    def max_loss_point(models: int, look: Callable[[Pool], object]) -> int:
        live = highest = 0

        class Held:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal live, highest
                self.tensor = tensor
                live += tensor.nbytes
                highest = max(highest, live)

            def __del__(self) -> None:
                nonlocal live
                live -= self.tensor.nbytes

        with torch.autograd.graph.saved_tensors_hooks(Held, lambda packed: packed.tensor):
            look(Ensemble(objectives(*[wide(*w) for w in weights[:models]]), MinLoss()))
        assert live == 0
        return highest

    def one_by_one(pool: Pool) -> object:
        return pool.value_and_grad(Backprop(), X, keys(N))

    def at_once(pool: Pool) -> object:
        return Backprop().value_and_grad(pool, X, keys(N))

    alone = max_loss_point(1, one_by_one)
    assert alone > 3 * N * 64 * 8  # three activations of 64 numbers each
    assert max_loss_point(10, one_by_one) <= 1.3 * alone
    assert max_loss_point(10, at_once) > 8 * alone


# ---- selection and coins -------------------------------------------------------------------------------------------------------


def test_the_best_round_is_sent_whole_and_chosen_by_wrong_answers_of_the_rehearsed_defender() -> (
    None
):
    """No row of one round's batch beside a row of another's: that batch was never answered by anybody."""
    offered: list[Tensor] = []
    chosen: list[int] = []

    class Recording(Transductive):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            offered.append(x)
            return super().adapt(x, ctx)

    defense = Recording(NET, torch.zeros(6, dtype=torch.float64))
    for seed in range(6):
        offered.clear()
        point = GreedyModelSpace("avg", PGD5, 4).move(sub_context(seed=seed), defense, X, Y).point
        wrong = [int((NET(x - x.mean(0)).argmax(1) != Y).sum()) for x in offered]
        assert len(offered) == 4
        assert any(torch.equal(point, x) for x in offered)
        sent = next(k for k, x in enumerate(offered) if torch.equal(point, x))
        assert wrong[sent] == max(wrong)
        chosen.append(sent)
    assert len(set(chosen)) > 1


class Retraining(Shifted):
    """Learns nothing from its batch, and everything from its coins."""

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
    """The same, and it goes on from where it is."""

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
def test_another_seed_of_the_defender_changes_no_point_of_the_attacker(adversary: Any) -> None:
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


def test_rounds_rehearse_with_coins_of_their_own_and_models_of_an_ensemble_are_independent() -> (
    None
):
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
        adversary.move(sub_context(), defense, X, Y)
        assert len({float(mu[0]) for mu in shifts}) == 4
    shifts.clear()
    GreedyModelSpace("avg", PGD5, 2).move(sub_context(Threat(SPACE, draws=3)), defense, X, Y)
    assert len({float(mu[0]) for mu in shifts}) == 6  # three models a round


def test_an_ensemble_finds_points_that_transfer_to_a_model_drawn_afterwards() -> None:
    """Sixteen shifts drawn like the defender's: the average over them beats the one model that the attacker starts from."""
    defense = Retraining(NET, torch.zeros(6, dtype=torch.float64))
    threat = Threat(SPACE, draws=50)
    direct = Direct("pgd", PGD(steps=20, step_size=0.02), cross_entropy)
    transfer, ensemble = (
        float(play(defense, a, X, Y, threat).margin.mean())
        for a in (Transfer(direct, Static(NET)), RetrainedEnsemble("e", direct, 16))
    )
    assert ensemble > transfer


# ---- what else is sent -----------------------------------------------------------------------------------------------------------


def test_the_clean_fallback_is_labeled_and_sends_the_clean_batch_unless_more_answers_go_wrong() -> (
    None
):
    harmless = GreedyModelSpace(
        "avg", Direct("still", PGD(steps=1, step_size=1e-9, random_start=False), cross_entropy), 1
    )
    for inner in (harmless, GreedyModelSpace("avg", PGD5, 3)):
        fallback, plain = (
            play(BATCH, a, X, Y, Threat(SPACE)) for a in (CleanFallback(inner), inner)
        )
        broke = plain.correct.sum() < (NET(X - X.mean(0)).argmax(1) == Y).sum()
        assert torch.equal(fallback.points, plain.points if broke else X)
        assert not plain.copies.all()
    assert CleanFallback(harmless).name == "avg (clean fallback)"


def test_skip_attacks_the_state_that_the_last_batch_left_and_needs_a_threat_that_leaks_it() -> None:
    defense = Online(NET, torch.zeros(6, dtype=torch.float64))
    skip = Skip(PGD5)
    episode = play(defense, skip, X, Y, Threat(SPACE), batch_size=6)
    mu = episode.points[:6].mean(0) / 2
    second = PGD5.move(
        AttackContext.open(Threat(SPACE), torch.arange(6, 12), 0), Shifted(NET, mu), X[6:], Y[6:]
    )
    assert torch.equal(episode.points[6:], second.max_loss_point)
    with pytest.raises(
        PermissionError, match="pgd-skip attacks the defender's state, which this threat hides"
    ):
        play(defense, skip, X, Y, Threat(SPACE, state_visible=False))


def test_a_portfolio_gives_each_row_the_run_that_its_models_like_worst() -> None:
    runs = (Direct("ce", PGD(steps=3), cross_entropy), Direct("margin", PGD(steps=3), margin))
    pool = [Static(smooth(s)) for s in (1, 5)]
    found = Portfolio("two", runs).against(pool, sub_context(), X, Y, MinLoss())
    single = [
        run.against(pool, sub_context().again(k), X, Y, MinLoss()).max_loss_point
        for k, run in enumerate(runs)
    ]
    sure = lambda x: torch.stack(  # noqa: E731
        [d.net(x).softmax(1).scatter(1, Y[:, None], 0).amax(1) for d in pool]
    ).amin(0)
    better = sure(single[0]) >= sure(single[1])
    assert 0 < better.sum() < N
    assert torch.equal(found.max_loss_point, torch.where(better[:, None], *single))
    full = high_confidence(steps=2, step_size=0.05, targets=3)
    assert len(full.runs) == 8
    assert (
        GreedyModelSpace("gmsa", full, 2, MinLoss()).move(sub_context(), BATCH, X, Y).point.shape
        == X.shape
    )
    with pytest.raises(ValueError, match="chooses among no attacks"):
        Portfolio("none", ())


def test_attacks_without_rounds_or_models_are_refused() -> None:
    for build in (lambda: GreedyModelSpace("g", PGD5, 0), lambda: FixedPoint("f", PGD5, 0)):
        with pytest.raises(ValueError, match="at least one round, got rounds=0"):
            build()
    with pytest.raises(ValueError, match="at least one model, got models=0"):
        RetrainedEnsemble("e", PGD5, 0)


def test_the_static_net_s_attack_is_taken_back_by_the_learning_and_one_through_it_is_not() -> None:
    """All rows have one label and a linear net, so the static attack moves all alike, and the mean of the batch takes that away."""
    linear = Affine.binary(torch.ones(6, dtype=torch.float64))  # the margin of label 0 is -sum x
    x = 0.5 + 0.02 * uniform(4, N, 6)
    y = torch.zeros(N, dtype=torch.long)
    defense = Transductive(linear, torch.full((6,), 0.5, dtype=torch.float64))
    blind = play(
        defense,
        Direct("static", PGD(steps=20, step_size=0.01, random_start=False)),
        x,
        y,
        Threat(Linf(0.1)),
    )
    torch.testing.assert_close(blind.points, x - 0.1)
    torch.testing.assert_close(blind.margin[0], -(x - x.mean(0)).sum(1))
    z = uniform(11, 64, 6)
    labels = NET(z - z.mean(0)).argmax(1)
    on_it, through = (
        play(
            BATCH,
            Direct("pgd", PGD(steps=20, step_size=0.02), saturated(margin), respond=respond),
            z,
            labels,
            Threat(SPACE),
        )
        for respond in (False, True)
    )
    assert through.correct.sum() < on_it.correct.sum() - 5


def test_an_adapted_model_with_parameters_per_row_follows_its_rows() -> None:
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
    pool = Ensemble((objective, objective), MinLoss())
    torch.testing.assert_close(
        pool[rows](X[rows], keys(N)[rows]).value, pool(X, keys(N)).value[rows]
    )
