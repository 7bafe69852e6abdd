"""The referee: legal points, random keys of the defender, adaptation; and outcomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from tests.problems import (
    Affine,
    Centring,
    Exits,
    Noisy,
    Online,
    Static,
    Transductive,
    smooth,
    uniform,
)
from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Access, Context, Defense, Trace, View, mean, view
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Cascade,
    Direct,
    FixedPoints,
    Outcomes,
    Restarts,
    Threat,
    evaluate,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import FixedRandomness

SPACE = Linf(0.1)
N = 30
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD5 = Direct("pgd", PGD(steps=5))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (X[:, :3], r"proposed points of shape \(30, 3\) for inputs of shape \(30, 6\)"),
        (X * math.nan, "proposed points that are not finite numbers"),
        (X / 0, "proposed points that are not finite numbers"),
        (
            torch.where(torch.arange(N)[:, None] < 2, 0.5 + 0 * X, X),
            "left the perturbation set on 2 of 30.*Linf radius 0.1",
        ),
        (X - 0.1, "left the perturbation set"),  # in the ball, out of the box
    ],
    ids=["shape", "nan", "infinite", "far", "below zero"],
)
def test_an_illegal_point_raises_an_error(points: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"illegal {message}"):
        play(Static(NET), FixedPoints("illegal", points), X, Y, Threat(SPACE))


def test_the_record_contains_the_proposed_points_and_their_cost() -> None:
    nudged = torch.where(torch.arange(N)[:, None] % 2 == 0, X, (X + 0.05).clamp(max=1))
    episode = play(Static(NET), FixedPoints("half", nudged), X, Y, Threat(SPACE), batch_size=7)
    assert torch.equal(episode.copies, torch.arange(N) % 2 == 0)
    torch.testing.assert_close(episode.size, (nudged - X).abs().amax(1), rtol=0, atol=0)
    assert torch.equal(episode.points, nudged)
    assert episode.batch.tolist() == [i // 7 for i in range(N)]
    assert torch.equal(episode.correct[0] == 1, NET(nudged).argmax(1) == Y)
    assert episode.forward.sum() == episode.backward.sum() == 0


def test_answers_are_columns_and_the_default_is_the_answer_of_the_defense() -> None:
    nets = tuple(Affine.random(k, 4, 6) for k in (1, 7, 9))
    answers = {
        "first": view("exit/0"),
        "last": view("exit/2"),
        "all": mean(),
        "some": mean("exit/1", "exit/2"),
    }
    correct = play(Exits(nets), FixedPoints(), X, Y, Threat(SPACE), answers=answers).correct
    z = torch.stack([net(X) for net in nets])
    expected = torch.stack([z[0], z[2], z.mean(0), z[1:].mean(0)]).argmax(-1) == Y
    assert torch.equal(correct == 1, expected)
    assert torch.equal(play(Exits(nets), FixedPoints(), X, Y, Threat(SPACE)).correct[0], correct[3])


def test_evaluate_needs_an_adversary() -> None:
    with pytest.raises(ValueError, match="needs at least one adversary"):
        evaluate(Static(NET), [], X, Y, threat=SPACE)


def test_invalid_inputs_raise_errors_before_any_attack() -> None:
    with pytest.raises(
        ValueError, match=r"at least one input and a label for each, got 0 inputs and 0 labels"
    ):
        play(Static(NET), PGD5, X[:0], Y[:0], Threat(SPACE))
    with pytest.raises(ValueError, match=r"got 30 inputs and 29 labels"):
        play(Static(NET), PGD5, X, Y[:29], Threat(SPACE))
    normalized = (X - 0.5) / 0.25
    with pytest.raises(
        ValueError,
        match=r"must lie in the box \[0, 1\] of the .* set, found values from -1.9.* to 1.9",
    ):
        play(Static(NET), PGD5, normalized, Y, Threat(SPACE))
    play(Static(NET), PGD5, normalized, Y, Threat(Linf(0.1, box=(-2, 2))))
    with pytest.raises(ValueError, match="must lie in the box"):
        play(Static(NET), PGD5, X * math.nan, Y, Threat(SPACE))


def test_an_invalid_threat_model_raises_an_error() -> None:
    with pytest.raises(ValueError, match="at least one draw, got draws=0"):
        Threat(SPACE, draws=0)
    with pytest.raises(ValueError, match="at least 1 or None, got 0"):
        Threat(SPACE, queries=0)
    assert str(Threat(Linf(8 / 255), queries=9)) == (
        "Linf radius 8/255, gradient access, 9 queries per example, private randomness, "
        "evaluated over one draw"
    )


def test_the_random_keys_of_the_referee_do_not_depend_on_the_batch() -> None:
    threat = Threat(SPACE, draws=3)
    whole, parts = (
        play(Noisy(NET, 1.0), FixedPoints(), X, Y, threat, batch_size=b) for b in (N, 4)
    )
    assert torch.equal(whole.correct, parts.correct)
    assert torch.equal(whole.chosen, parts.chosen)
    other = play(Noisy(NET, 1.0), FixedPoints(), X, Y, threat, seed=1)
    assert not torch.equal(whole.correct, other.correct)
    order = torch.arange(N).flip(0)
    assert torch.equal(
        play(Noisy(NET, 1.0), FixedPoints(), X[order], Y[order], threat, ids=order).correct,
        whole.correct[:, order],
    )


def test_the_fraction_of_correct_draws_is_the_probability_of_a_correct_output() -> None:
    """P(w (x + s n) > 0) = Phi(w x / (s |w|)).

    With 400 draws, five sigma is at most 5 / (2 sqrt(400)) = 0.125 for each row.
    """
    w = uniform(5, 6) - 0.5
    scale = 0.5
    x = X - 0.5
    defense = Noisy(Affine.binary(w), scale)
    y = torch.zeros(N, dtype=torch.long)
    threat = Threat(Linf(0.1, box=(-1, 1)), draws=400)
    episode = play(defense, FixedPoints(), x, y, threat)
    expected = 0.5 * (1 + torch.erf((x @ w) / (scale * w.norm()) / math.sqrt(2)))
    assert (episode.correct[0] - expected).abs().amax() < 0.125
    assert (episode.chosen[0] - expected).abs().amax() < 0.125
    assert not torch.equal(episode.correct, episode.chosen)


def test_the_attacker_knows_public_randomness_and_not_private_randomness() -> None:
    drawn: list[Tensor] = []

    class Recording(Noisy):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            drawn.append(ctx.randn_like(x))
            return Static(self.net).trace(x + self.scale * drawn[-1], ctx)

    fixed = Direct("fixed", PGD(steps=3), estimator=FixedRandomness())
    for randomness in ("private", "public"):
        drawn.clear()
        play(Recording(NET), fixed, X, Y, Threat(SPACE, randomness=randomness))
        attack = drawn[:4]
        evaluated = drawn[4]
        assert all(torch.equal(a, attack[0]) for a in attack)
        assert torch.equal(attack[0], evaluated) == (randomness == "public")


def test_with_public_randomness_the_attacked_function_is_the_evaluated_one() -> None:
    """Success on the oracle is success at the referee, row by row; not with private randomness."""
    defense = Noisy(NET, 0.3)
    fixed = Direct("fixed", PGD(steps=10), estimator=FixedRandomness())
    agreed = {}
    for randomness in ("private", "public"):
        threat = Threat(SPACE, randomness=randomness)
        context = AttackContext.open(threat, torch.arange(N), 0)
        point = fixed.move(context, defense, X, Y).point
        success = defense.respond(point, Context(context.simulated_keys())).argmax(1) != Y
        agreed[randomness] = torch.equal(
            play(defense, fixed, X, Y, threat).correct[0] == 0, success
        )
        assert success.any()
        assert not success.all()
    assert agreed == {"private": False, "public": True}


@pytest.mark.parametrize(
    "combine",
    [lambda a: Cascade("all", (a, PGD5)), lambda a: Restarts(a, 3)],
    ids=["cascade", "restarts"],
)
def test_with_public_randomness_a_combination_is_at_least_as_strong_as_its_member(combine) -> None:
    """The simulation uses the keys of the evaluation, so simulated success is success."""
    fixed = Direct("fixed", APGD(steps=10), estimator=FixedRandomness())
    for seed in range(5):
        alone, combined = (
            play(Noisy(NET, 0.3), a, X, Y, Threat(SPACE, randomness="public"), seed=seed).correct
            for a in (fixed, combine(fixed))
        )
        assert (combined <= alone).all()


def test_with_public_randomness_the_strongest_adversary_is_selected_on_the_evaluated_draws() -> (
    None
):
    adversaries = [Direct(f"pgd {k}", PGD(steps=k), estimator=FixedRandomness()) for k in (1, 3, 9)]
    out = evaluate(
        Noisy(NET, 0.5), adversaries, X, Y, threat=Threat(SPACE, randomness="public", draws=3)
    )
    assert torch.equal(out.worst_case_per_example(), out.correct.amin(0))
    private = evaluate(Noisy(NET, 0.5), adversaries, X, Y, threat=Threat(SPACE, draws=3))
    assert not torch.equal(private.chosen, private.correct)


def test_an_online_defense_keeps_its_state_between_batches_and_the_original_is_unchanged() -> None:
    start = torch.zeros(6, dtype=torch.float64)
    defense = Online(NET, start)
    episode = play(defense, FixedPoints(), X, Y, Threat(SPACE), batch_size=10)
    mu = start
    correct = []
    for k in range(0, N, 10):
        mu = (mu + X[k : k + 10].mean(0)) / 2
        correct.append(NET(X[k : k + 10] - mu).argmax(1) == Y[k : k + 10])
    assert torch.equal(episode.correct[0] == 1, torch.cat(correct))
    assert torch.equal(defense.mu, start)


def test_a_transductive_defense_keeps_no_state_between_batches() -> None:
    defense = Transductive(NET, torch.zeros(6, dtype=torch.float64))
    episode = play(defense, FixedPoints(), X, Y, Threat(SPACE), batch_size=10)
    batches = [X[k : k + 10] for k in range(0, N, 10)]
    expected = torch.cat([NET(b - b.mean(0)).argmax(1) for b in batches]) == Y
    assert torch.equal(episode.correct[0] == 1, expected)


def test_the_attacker_of_an_online_defense_queries_its_adapted_state() -> None:
    states: list[Tensor] = []

    @dataclass(frozen=True)
    class RecordsState(Adversary):
        name: str = "records state"
        needs: Access = "decision"

        def move(
            self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor
        ) -> AttackResult:
            states.append(defense.mu)
            return AttackResult(x, x)

    play(Online(NET, X[0]), RecordsState(), X, Y, Threat(SPACE), batch_size=15)
    torch.testing.assert_close(
        torch.stack(states), torch.stack([X[0], (X[0] + X[:15].mean(0)) / 2]), rtol=0, atol=1e-15
    )


def test_the_unit_follows_from_the_declarations_of_a_defense() -> None:
    units = [
        d.unit
        for d in (
            Static(NET),
            Noisy(NET),
            Centring(NET),
            Transductive(NET, X[0]),
            Online(NET, X[0]),
        )
    ]
    assert units == ["example", "example", "batch", "batch", "stream"]


def record(correct: Tensor, unit: str, chosen: Tensor | None = None, size: int = 7) -> Outcomes:
    a, d, n = correct.shape
    names = tuple(map(str, range(a))), tuple(map(str, range(d)))
    return Outcomes(
        *names, correct, correct if chosen is None else chosen, torch.arange(n) // size, unit
    )


UNITS = ("example", "batch", "stream")


@pytest.mark.parametrize("unit", UNITS)
def test_adding_an_adversary_never_increases_the_worst_case_accuracy(unit: str) -> None:
    correct = (uniform(1, 5, 3, N) > 0.4).double()
    worst = torch.stack([record(correct[:k], unit).worst_case() for k in range(1, 6)])
    assert (worst.diff(dim=0) <= 1e-12).all()
    assert (worst[-1] < worst[0]).all()


def test_a_larger_unit_restricts_the_attacker_more() -> None:
    correct = (uniform(2, 5, 3, N) > 0.4).double()
    example, batch, stream = (record(correct, unit).worst_case() for unit in UNITS)
    assert (example < batch).all()
    assert (batch < stream).all()
    assert torch.equal(example, correct.amin(0).mean(-1))
    torch.testing.assert_close(stream, correct.mean(-1).amin(0))
    groups = [correct[..., k : k + 7].sum(-1).amin(0) for k in range(0, N, 7)]
    torch.testing.assert_close(batch, torch.stack(groups).sum(0) / N)


def test_all_rows_of_a_unit_have_the_same_strongest_adversary() -> None:
    out = record((uniform(3, 4, 2, N) > 0.5).double(), "batch")
    strongest = out.strongest()
    for k in range(0, N, 7):
        assert (strongest[:, k : k + 7] == strongest[:, k : k + 1]).all()
    assert torch.equal(
        record(out.correct, "stream").strongest(),
        record(out.correct, "stream").strongest()[:, :1].expand(2, N),
    )


def test_the_payoff_is_the_error_rate_of_the_defender() -> None:
    out = record((uniform(3, 4, 2, N) > 0.5).double(), "example")
    torch.testing.assert_close(out.payoff() + out.accuracy(), torch.ones(4, 2, dtype=torch.float64))


def test_the_worst_case_of_equally_strong_adversaries_is_unbiased() -> None:
    """Eight adversaries, 4000 rows, each correct with probability 0.7.

    Selected on other draws the worst case has mean 0.7 and sigma sqrt(0.21 / 4000) = 0.0072;
    selected on the same draws it would be 0.7^8 = 0.06.
    """
    n = 4000
    p = 0.7
    correct = (uniform(4, 8, 1, n) < p).double()
    chosen = (uniform(5, 8, 1, n) < p).double()
    unbiased = record(correct, "example", chosen).worst_case()
    biased = record(correct, "example").worst_case()
    assert abs(unbiased.item() - p) < 5 * 0.0072
    assert biased.item() < 0.1


def test_repeated_evaluations_do_not_lower_the_accuracy_of_a_randomized_defense() -> None:
    """The same with the referee: noise only, no attack, eight copies of the clean image."""
    w = torch.ones(6, dtype=torch.float64)
    x = torch.full((400, 6), 0.1, dtype=torch.float64)
    y = torch.zeros(400, dtype=torch.long)
    defense = Noisy(Affine.binary(w), 0.5)

    @dataclass(frozen=True)
    class Shift(Adversary):
        """Proposes points that hardly differ from the clean image."""

        by: float
        needs: Access = "decision"
        name: str = "shift"

        def move(
            self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor
        ) -> AttackResult:
            return AttackResult(x + self.by, x + self.by)

    out = evaluate(defense, [Shift(1e-9 * k) for k in range(8)], x, y, threat=Threat(SPACE), seed=3)
    p = 0.5 * (1 + math.erf(0.6 / (0.5 * math.sqrt(6)) / math.sqrt(2)))
    assert abs(out.worst_case().item() - p) < 5 * math.sqrt(p * (1 - p) / 400)


def test_a_plain_net_and_labels_that_are_not_integers_raise_errors_that_name_the_fix() -> None:
    net = smooth(1)
    x = uniform(0, 4, 6)
    with pytest.raises(TypeError, match=r"Plain\(net\)"):
        play(net, FixedPoints(), x, torch.zeros(4).long(), Threat(SPACE))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one integer per input"):
        play(Static(net), FixedPoints(), x, torch.zeros(4), Threat(SPACE))


def test_labels_may_be_integers_of_any_type() -> None:
    net = smooth(1)
    x = uniform(0, 4, 6)
    y = net(x).argmax(1)
    assert play(
        Static(net), Direct("pgd", PGD(2)), x, y.to(torch.uint8), Threat(Linf(0.0))
    ).correct.all()


def test_a_trace_selects_views_by_name() -> None:
    z = torch.zeros(2, 3)
    trace = Trace((View("a", z), View("b", z + 1)))
    assert trace.names == ("a", "b")
    assert trace.logits.shape == (2, 2, 3)
    assert torch.equal(trace.last, z + 1)
    assert trace.select(["b"]).names == ("b",)
    with pytest.raises(
        ValueError, match=r"no view called \['c'\]; this defense shows \['a', 'b'\]"
    ):
        trace.select(["c"])
    with pytest.raises(ValueError, match="at least one View"):
        Trace(())
