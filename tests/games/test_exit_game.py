"""The exit game: its payoff matrix, its strategies, and their accuracy under stronger attackers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import (
    Context,
    Mix,
    MultiExit,
    Plain,
    Static,
    Subset,
    all_subsets,
    intervals,
)
from saddlepoint.defenses.gates import Confident
from saddlepoint.evaluation import Direct
from saddlepoint.evaluation.combinators import MaxLossPoint
from saddlepoint.evaluation.referee import play
from saddlepoint.evaluation.threat import Threat
from saddlepoint.games.aimer import aimer
from saddlepoint.games.double_oracle import lowest_forecast
from saddlepoint.games.exit_game import exit_game
from saddlepoint.games.matrix import least_per_example
from saddlepoint.games.need import NEED
from saddlepoint.games.payoffs import ExitGame, jaccard_distances
from saddlepoint.games.strategies import as_mix

RADIUS = 0.1
STEPS = 4


class Exits(nn.Module):
    """Linear exits with independent weights, so that attacks on one exit hardly affect the others.

    Counts its forward passes.
    """

    def __init__(self, exits: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(
            torch.randn(exits, 3, 12, generator=generator, dtype=torch.float64)
        )
        self.calls = 0

    def forward(self, x: Tensor) -> list[Tensor]:
        self.calls += 1
        return [(x - 0.5).flatten(1) @ w.T for w in self.weight]


def problem(exits: int, n: int = 24, seed: int = 0) -> tuple[Exits, Tensor, Tensor]:
    net = Exits(exits, seed)
    x = torch.rand(
        n, 1, 3, 4, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    with torch.no_grad():
        y = torch.stack(net(x)).mean(0).argmax(1)  # the mean of all exits is correct without attack
    net.calls = 0
    return net, x, y


def small(exits: int = 3, n: int = 24) -> tuple[Exits, Tensor, Tensor, ExitGame]:
    net, x, y = problem(exits, n)
    return net, x, y, exit_game(MultiExit(net), x, y, threat=Linf(RADIUS), attack=PGD(STEPS))


@pytest.mark.parametrize("exits", [2, 3, 4, 5])
def test_jaccard_distances_have_their_closed_forms(exits: int) -> None:
    subsets = all_subsets(exits)
    distances = jaccard_distances(subsets, subsets, exits)
    count = len(subsets)
    uniform = torch.full((count,), 1 / count, dtype=torch.float64)
    everything = subsets.index(tuple(range(1, exits + 1)))
    single = 0
    assert float(distances.diagonal().abs().amax()) == 0
    assert float(distances[everything] @ uniform) == pytest.approx(
        1 - 2 ** (exits - 1) / (2**exits - 1), abs=1e-12
    )
    assert float(distances[single] @ uniform) == pytest.approx(1 - 1 / exits, abs=1e-12)
    assert float(uniform @ distances @ uniform) == pytest.approx(
        {2: 4 / 9, 3: 4 / 7, 4: 28 / 45, 5: 20 / 31}[exits], abs=1e-12
    )


def test_a_7_exit_game_costs_one_attack_per_row_and_one_forward_for_all_127_columns() -> None:
    net, x, y = problem(7, n=8)
    game = exit_game(MultiExit(net), x, y, threat=Linf(RADIUS), attack=PGD(STEPS))
    assert game.payoff.shape == (127, 127)
    names_of_views = 1
    clean_images = 1
    assert net.calls == names_of_views + clean_images + 127 * ((STEPS + 1) + 1)
    assert all(
        bool((e.forward == STEPS + 1).all() and (e.backward <= STEPS + 1).all())
        for e in game.outcomes.episodes
    )


def test_a_row_is_the_partial_attack_and_a_column_the_mean_of_logits() -> None:
    net, x, y, game = small()
    row = game.subsets.index((1, 3))
    column = game.subsets.index((2, 3))
    points = game.outcomes.episodes[row].points
    logits = torch.stack(net(points))
    assert_close(game.correct[row, column], (logits[1:].mean(0).argmax(1) == y).double())
    clean = [z.log_softmax(1)[range(len(y)), y] for z in net(x)]
    attacked = [z.log_softmax(1)[range(len(y)), y] for z in logits]
    assert bool(((attacked[0] + attacked[2]) < (clean[0] + clean[2])).all()), (
        "the mean loss of exits 1 and 3 increased"
    )


def test_one_exit_is_a_plain_network_under_plain_pgd() -> None:
    net, x, y = problem(1)
    game = exit_game(net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS))
    plain = play(
        Plain(_Last(net)),
        MaxLossPoint(Direct("pgd", PGD(STEPS), cross_entropy)),
        x,
        y,
        Threat(Linf(RADIUS)),
    )
    assert torch.equal(game.outcomes.episodes[0].points, plain.points)
    assert game.equilibrium().value == pytest.approx(float(plain.correct.mean()), abs=1e-12)
    assert game.mismatch(torch.ones(1), torch.ones(1)) == 0


class _Last(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[-1]


def test_need_is_at_least_as_accurate_as_every_pure_answer_and_aimer_is_its_worst_row() -> None:
    *_, game = small()
    found = game.equilibrium()
    assert found.gap < 1e-9
    assert found.value >= float(game.payoff.amin(0).amax()) - 1e-9
    assert float(
        game.best_response(found.defender) @ game.accuracy(found.defender)
    ) == pytest.approx(found.value, abs=1e-9)


def test_the_per_example_strategy_is_optimal_against_the_per_example_attacker() -> None:
    *_, game = small()
    found = game.per_example()
    pure = [game.one_hot(subset) for subset in game.subsets]
    for rival in [*pure, game.equilibrium().defender]:
        assert float(least_per_example(game.correct, rival).mean()) <= found.value + 1e-9
    assert found.value <= game.equilibrium().value + 1e-9


def test_need_draws_per_example_and_gives_its_exact_expectation() -> None:
    net, x, y, game = small(n=60)
    need = NEED.of(net, game)
    trace = need.trace(x, Context.seeded(0, len(x)))
    expected = need.expected(trace, y)
    by_column = torch.stack(
        [(need_column(trace, subset).argmax(1) == y).double() for subset in need.strategy.subsets]
    )
    assert_close(
        expected, torch.tensor(need.strategy.probabilities, dtype=torch.float64) @ by_column
    )
    draws = torch.stack(
        [
            (need.answer(trace, Context.seeded(seed, len(x))).argmax(1) == y).double()
            for seed in range(400)
        ]
    )  # [400, N]
    sigma = float((expected * (1 - expected)).sum().sqrt()) / len(x) / math.sqrt(400)
    assert abs(float(draws.mean()) - float(expected.mean())) <= 4 * sigma + 1e-12
    mixed_rows = (draws.std(0) > 0).sum()
    assert int(mixed_rows) == int(((expected > 0) & (expected < 1)).sum()), (
        "each example has its own draw"
    )


def need_column(trace, subset):
    return torch.stack([trace.views[k - 1].logits for k in subset]).mean(0)


def test_stronger_attackers_leave_a_lower_accuracy() -> None:
    net, _, _, game = small()
    _, fresh, labels = problem(3, n=30, seed=0)
    found = aimer(
        MultiExit(net),
        game.equilibrium().defender,
        fresh,
        labels,
        threat=Linf(RADIUS),
        game=game,
        attack=PGD(STEPS),
    )
    assert found.per_image.value <= min(found.aimer.value, found.expected_loss.value) + 1e-12
    assert found.clean.value >= found.per_image.value
    assert found.restricted == pytest.approx(game.equilibrium().value, abs=1e-9)
    assert found.correct.shape == (1 + len(game.subsets) + 1, 30)
    assert "strongest attack per image" in str(found)


def test_a_pure_answer_has_the_value_of_its_column_and_a_gate_is_attacked_through_it() -> None:
    net, x, y, game = small()
    fixed = aimer(
        MultiExit(net),
        (2,),
        x,
        y,
        threat=Linf(RADIUS),
        game=game,
        attack=PGD(STEPS),
        all_rows=False,
    )
    assert fixed.restricted == pytest.approx(
        float(game.payoff[:, game.subsets.index((2,))].amin()), abs=1e-12
    )
    gate = Confident((0.6, 0.6))
    gated = aimer(
        MultiExit(net, gate),
        gate,
        x,
        y,
        threat=Linf(RADIUS),
        game=game,
        attack=PGD(STEPS),
        all_rows=False,
    )
    assert gated.rows[-1] == "through the gate"
    assert float(gated.strategy.sum()) == pytest.approx(1)
    assert {s for s, p in zip(game.subsets, gated.strategy.tolist(), strict=True) if p > 0} <= {
        (1,),
        (2,),
        (3,),
    }


def test_without_a_game_half_of_the_images_build_one_and_the_others_evaluate() -> None:
    net, x, y = problem(2, n=20)
    found = aimer(net, Static((1,)), x, y, threat=Linf(RADIUS), attack=PGD(STEPS))
    assert found.clean.n == 10


def test_the_double_oracle_has_the_value_of_the_full_game_against_partial_attacks() -> None:
    net, x, y = problem(4, n=60)
    full = exit_game(net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS))
    grown = exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS), rows="double-oracle", tolerance=0.01
    )
    partial = [target for target in grown.targets if target is not None]
    assert len(set(partial)) == len(partial) < 15
    assert full.partial_value() == pytest.approx(full.value(), abs=1e-9)
    assert grown.partial_value() == pytest.approx(full.value(), abs=0.003)
    assert grown.value() < grown.partial_value() - 0.003, (
        "on independent exits the attack on the expected loss is stronger than any partial attack"
    )
    assert grown.exploitability is not None
    assert grown.exploitability < 0.01


def test_partial_attacks_do_not_depend_on_attacks_on_an_expected_loss() -> None:
    """The value against partial attacks is that of one game, not of a mixture of two."""
    net, x, y = problem(4, n=60)
    grown = exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS), rows="double-oracle", tolerance=0.01
    )
    last_partial = max(a for a, target in enumerate(grown.targets) if target is not None)
    assert None not in grown.targets[:last_partial]
    assert grown.targets[last_partial + 1 :].count(None) >= 1


def test_the_double_oracle_of_l_exits_plays_at_least_l_partial_attacks() -> None:
    net, x, y = problem(4, n=60)
    grown = exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS), rows="double-oracle", tolerance=1.0
    )
    partial = [target for target in grown.targets if target is not None]
    assert len(set(partial)) == len(partial) == 4, "no row can lower the accuracy by 100 %"
    assert grown.targets.count(None) == 1


def test_the_double_oracle_stops_by_its_forecast() -> None:
    """It stops at the first game in which no subset is forecast to gain the tolerance."""
    net, x, y = problem(4, n=60)
    grown = exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS), rows="double-oracle", tolerance=0.02
    )
    partial = [a for a, target in enumerate(grown.targets) if target is not None]
    for count in range(4, len(partial) + 1):
        rows = partial[:count]
        part = replace(
            grown,
            targets=tuple(grown.targets[a] for a in rows),
            outcomes=grown.outcomes.only(rows),
        )
        equilibrium = part.equilibrium()
        forecast = lowest_forecast(part, equilibrium.defender)
        assert forecast is not None
        assert (equilibrium.value - forecast.low < 0.02) == (count == len(partial))


def test_the_next_target_is_near_strong_rows_or_far_from_all_rows() -> None:
    """If rows differ, it is similar to the strong one; if not, it is least similar to all."""
    *_, game = small()
    mix = torch.full((7,), 1 / 7, dtype=torch.float64)
    rows = [game.subsets.index(subset) for subset in ((1,), (2,))]
    correct = torch.ones(2, 7, 100, dtype=torch.float64)
    weak = replace(
        game,
        targets=((1,), (2,)),
        outcomes=replace(game.outcomes.only(rows), correct=correct, episodes=()),
    )
    assert _next(weak, mix) == (3,)
    strong = replace(
        weak,
        outcomes=replace(weak.outcomes, correct=correct * torch.tensor([1.0, 0.0])[:, None, None]),
    )
    assert _next(strong, mix) == (2, 3)
    assert lowest_forecast(game, mix) is None


def _next(game: ExitGame, mix: Tensor) -> Subset:
    forecast = lowest_forecast(game, mix)
    assert forecast is not None
    assert forecast.low <= 1
    return forecast.subset


def test_intervals_and_given_subsets_make_smaller_games() -> None:
    net, x, y = problem(4)
    assert len(intervals(4)) == 10
    assert exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(1), subsets="intervals"
    ).payoff.shape == (10, 10)
    assert exit_game(
        net, x, y, threat=Linf(RADIUS), attack=PGD(1), subsets=[(1,), (2, 4)]
    ).payoff.shape == (2, 2)


def test_the_interval_of_the_value_contains_the_value() -> None:
    *_, game = small()
    found = game.interval(lambda g: g.equilibrium().value, draws=50)
    assert found.low <= found.value <= found.high
    assert found.n == 24


def test_errors_about_invalid_input_say_what_to_do() -> None:
    net, x, y, game = small()
    with pytest.raises(ValueError, match=r"intervals.*double-oracle"):
        all_subsets(20)
    with pytest.raises(ValueError, match="must not be empty"):
        exit_game(net, x, y, threat=Linf(RADIUS), subsets=[()])
    with pytest.raises(ValueError, match="from 1 to 3"):
        aimer(net, (4,), x, y, threat=Linf(RADIUS), game=game)
    with pytest.raises(ValueError, match="sum to one"):
        game.best_response(torch.tensor([0.2] * 7))
    with pytest.raises(ValueError, match="sum to one"):
        Mix(((1,), (2,)), (0.5, 0.6))
    with pytest.raises(ValueError, match="one shape"):
        MultiExit(_Uneven()).trace(x, Context.seeded(0, len(x)))
    with pytest.raises(TypeError, match="attach_exits"):
        MultiExit(_Last(net)).trace(x, Context.seeded(0, len(x)))
    with pytest.raises(ValueError, match="deterministic defense with independent rows"):
        exit_game(Plain(_Last(net), random=True), x, y, threat=Linf(RADIUS))
    with pytest.raises(ValueError, match="sum to one"):
        as_mix(game, torch.zeros(7))


class _Uneven(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x.flatten(1)[:, :3], x.flatten(1)[:, :4]]


def test_of_several_optimal_strategies_need_is_the_one_with_the_highest_clean_accuracy() -> None:
    net, x, y = problem(3)
    game = exit_game(net, x, y, threat=Linf(RADIUS), attack=PGD(STEPS))
    # Every attack breaks every image in every column, so that every strategy is optimal.
    everything_fails = replace(game, outcomes=replace(game.outcomes, correct=0 * game.correct))
    clean = game.clean
    assert clean is not None
    assert float(clean.double().mean(-1) @ everything_fails.equilibrium().defender) == (
        pytest.approx(float(clean.double().mean(-1).amax()))
    )
