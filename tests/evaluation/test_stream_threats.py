"""Threat models of streams: visible state, order, controlled rows, and online queries."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.problems import Noisy, Online, Static, Transductive, smooth, uniform
from torch import Tensor, nn

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.attacks.square import Square
from saddlepoint.audits.cells import Job
from saddlepoint.defenses import Access, Context, Defense, Plain, Trace, View
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    BatchControl,
    Direct,
    FixedPoints,
    NaturalOrder,
    Restarts,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
    evaluate,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT
from saddlepoint.rng import Keys

SPACE = Linf(0.1)
N = 24
X = uniform(0, N, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD3 = Direct("pgd", PGD(steps=3), cross_entropy)
ZERO = torch.zeros(6, dtype=torch.float64)


def test_default_fields_of_a_stream_are_left_out_of_the_description() -> None:
    assert json.dumps(describe(Threat(Linf(0.25), draws=3))) == json.dumps(
        {
            "kind": "Threat",
            "space": {"kind": "Ball", "p": "inf", "radius": 0.25, "box": [0.0, 1.0]},
            "access": "gradient",
            "queries": None,
            "randomness": "private",
            "draws": 3,
        }
    )
    assert str(Threat(Linf(0.25))) == (
        "Linf radius 0.25, gradient access, unlimited queries, private randomness, "
        "evaluated over one draw"
    )
    assert str(Threat(Linf(0.25), draws=20)).endswith("evaluated over 20 draws")


def test_fields_that_differ_from_the_default_are_described_and_printed() -> None:
    plain = Threat(SPACE)
    cases = {
        "one round": replace(plain, rounds="one"),
        "hidden state": replace(plain, state_visible=False),
        "sorted by label in windows of 8": replace(plain, order=SortedByLabel(8)),
        "worst of 5 orders in windows of 8": replace(plain, order=WorstCaseOrder(8, tries=3)),
        "25 % of each batch controlled, success counted on benign rows": replace(
            plain, batch_control=BatchControl(0.25, "benign")
        ),
        "online queries": replace(plain, access="score", online_queries=True),
        "fixed randomness": replace(plain, randomness="fixed"),
    }
    for text, threat in cases.items():
        assert text in str(threat)
        assert describe(threat) != describe(plain)
    assert len({json.dumps(describe(threat)) for threat in cases.values()}) == len(cases)
    assert describe(replace(plain, order=NaturalOrder(), batch_control=BatchControl())) == describe(
        plain
    )


def test_contradictory_threat_models_raise_errors() -> None:
    for create, message in {
        (lambda: Threat(SPACE, rounds="one", order=SortedByLabel())): "its order has no effect",
        (lambda: Threat(SPACE, online_queries=True)): "gives no gradients: use access='score'",
        (
            lambda: Threat(SPACE, queries=9, order=WorstCaseOrder())
        ): "a query budget per example does not count",
        (lambda: BatchControl(0.0)): "above 0 and at most 1, got share=0.0",
        (lambda: BatchControl(1.0, "benign")): "needs rows that the attacker does not control",
        (lambda: SortedByLabel(0)): "needs at least one example, got window=0",
        (lambda: WorstCaseOrder(8, -1)): "at least 0 tries",
    }.items():
        with pytest.raises(ValueError, match=message):
            create()


def test_in_one_round_the_whole_stream_is_one_batch() -> None:
    for threat, batches in ((Threat(SPACE, rounds="one"), 1), (Threat(SPACE), 4)):
        episode = play(Transductive(NET, ZERO), FixedPoints(), X, Y, threat, batch_size=6)
        assert len(episode.batch.unique()) == batches
        means = torch.stack([X[episode.batch == b].mean(0) for b in episode.batch])
        assert torch.equal(episode.correct[0] == 1, NET(X - means).argmax(1) == Y)
        assert len(Job(Transductive(NET, ZERO), X, Y, threat, 0, 6).groups) == batches


class Drifting(Online):
    """An online defense with a randomized adaptation: a simulation has another state."""

    random = True

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Drifting(
            self.net, (self.mu + x.mean(0) + 0.1 * ctx.randn(6, dtype=torch.float64).mean(0)) / 2
        )


@dataclass(frozen=True)
class RecordsState(Adversary):
    """Proposes the clean images and records the state of the defense that it can query."""

    states: list[Tensor]
    name: str = "records state"
    needs: Access = "decision"

    def move(self, context: AttackContext, defense: Any, x: Tensor, y: Tensor) -> AttackResult:
        self.states.append(defense.mu)
        return AttackResult(x, x)


def test_the_attacker_sees_the_state_or_simulates_it_if_it_is_hidden() -> None:
    real: list[Tensor] = []

    class Watched(Drifting):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            adapted = super().adapt(x, ctx)
            assert isinstance(adapted, Drifting)
            return Watched(self.net, adapted.mu)

        def trace(self, x: Tensor, ctx: Context) -> Trace:
            real.append(self.mu)
            return super().trace(x, ctx)

    shown: dict[bool, list[Tensor]] = {True: [], False: []}
    for state_visible, states in shown.items():
        real.clear()
        play(
            Watched(NET, ZERO),
            RecordsState(states),
            X,
            Y,
            Threat(SPACE, state_visible=state_visible),
            batch_size=6,
        )
    evaluated = real[::2]  # every other evaluation is for selecting the strongest adversary
    assert all(torch.equal(a, b) for a, b in zip(shown[True][1:], evaluated, strict=False))
    assert torch.equal(shown[False][0], ZERO)
    assert not any(torch.equal(a, b) for a, b in zip(shown[False][1:], evaluated, strict=False))
    assert (
        shown[False][-1] - shown[True][-1]
    ).abs().amax() < 0.3  # the same distribution, another random draw
    public: list[Tensor] = []
    play(
        Watched(NET, ZERO),
        RecordsState(public),
        X,
        Y,
        Threat(SPACE, state_visible=False, randomness="public"),
        batch_size=6,
    )
    assert all(torch.equal(a, b) for a, b in zip(public, shown[True], strict=True))


def test_hiding_the_state_of_a_deterministic_online_defense_has_no_effect() -> None:
    hidden, seen = (
        play(
            Online(NET, ZERO), PGD3, X, Y, Threat(SPACE, state_visible=state_visible), batch_size=6
        )
        for state_visible in (False, True)
    )
    assert torch.equal(hidden.points, seen.points)
    assert torch.equal(hidden.margin, seen.margin)


def test_fixed_randomness_is_drawn_once_for_all_examples_and_outputs_and_is_known() -> None:
    drawn: list[Tensor] = []

    class Recording(Noisy):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            drawn.append(ctx.randn_like(x))
            return Static(self.net).trace(x + self.scale * drawn[-1], ctx)

    threat = Threat(SPACE, randomness="fixed", draws=5)
    episode = play(Recording(NET, 0.3), PGD3, X, Y, threat, batch_size=8)
    assert len(torch.cat(drawn).unique(dim=0)) == 1
    assert torch.equal(episode.correct, episode.chosen)
    context = AttackContext.open(threat, torch.arange(4), 0)
    assert torch.equal(context.simulated_keys().state, context.defender_keys(3).state)
    averaged = replace(PGD3, estimator=EoT(3))
    assert play(Recording(NET, 0.3), averaged, X, Y, threat).correct.shape == (1, N)


@pytest.mark.parametrize("n", [64, 50])
def test_sorting_by_label_permutes_every_window_and_sorts_its_labels(n: int) -> None:
    y = (7 * torch.arange(n)) % 5
    order = SortedByLabel(16).arrange(y, lambda _: 0.0)
    assert torch.equal(order.sort().values, torch.arange(n))
    for start in range(0, n, 16):
        window = slice(start, min(start + 16, n))
        assert torch.equal(order[window].sort().values, torch.arange(n)[window])
        first = y[order[window]][:8]
        second = y[order[window]][8:]
        assert not len(second) or second.amin() >= first.amax()
    same = order.reshape(-1)[y[order] == y[order[0]]]
    assert torch.equal(same[:3], same[:3].sort().values)  # equal labels keep their order


def test_the_record_of_a_sorted_stream_is_in_the_order_of_the_inputs() -> None:
    threat = Threat(SPACE, order=SortedByLabel(12))
    defense = Transductive(NET, ZERO)
    episode = play(defense, PGD3, X, Y, threat, batch_size=6)
    order = threat.order.arrange(Y, lambda _: 0.0)
    ordered = play(defense, PGD3, X[order], Y[order], Threat(SPACE), ids=order, batch_size=6)
    for name in ("points", "batch", "size", "copies", "forward"):
        assert torch.equal(getattr(episode, name)[order], getattr(ordered, name))
    assert torch.equal(episode.correct[:, order], ordered.correct)
    assert threat.space.contains(episode.points, X).all()
    job = Job(defense, X, Y, threat, 0, 6)
    assert [len(rows) for rows in job.groups] == [12, 12]
    parts = torch.cat([job.play(PGD3, rows).points for rows in job.groups])
    assert torch.equal(parts, episode.points)


class Balancing(Defense):
    """Subtracts the mean logits of its batch, which assumes balanced classes."""

    coupled = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = 4 * x[:, :3] - 2
        return Trace((View("final", logits - logits.mean(0)),))


def test_the_worst_case_order_has_at_least_as_many_errors_as_its_starting_orders() -> None:
    """Three classes, one pixel each: mixed batches are classified correctly, sorted ones not."""
    y = torch.arange(24) % 3
    x = 0.4 + 0.2 * nn.functional.one_hot(y, 3).double() + 0.01 * uniform(3, 24, 3)
    wrong = {}
    for order in (NaturalOrder(), SortedByLabel(24), WorstCaseOrder(24, tries=6)):
        wrong[str(order)] = 1 - float(
            play(
                Balancing(), FixedPoints(), x, y, Threat(Linf(0.0), order=order), batch_size=8
            ).correct.mean()
        )
    natural, sorted_, searched = wrong.values()
    assert natural == 0
    assert 0 < sorted_ <= searched
    found = WorstCaseOrder(24, tries=6).arrange(
        y, lambda order: float((order.view(3, 8).sum(1) - 92).abs().sum())
    )
    assert torch.equal(found.sort().values, torch.arange(24))


def test_the_search_maximizes_the_error_count() -> None:
    """The errors of this test: positions with another example than in the natural order."""

    def count_errors(order: Tensor) -> float:
        return float((order != torch.arange(32)).sum())

    y = torch.zeros(32, dtype=torch.long)  # sorting changes nothing
    few, many = (
        count_errors(WorstCaseOrder(16, tries=t).arrange(y, count_errors)) for t in (1, 40)
    )
    assert 0 < few < many
    order = WorstCaseOrder(16, tries=40).arrange(y, count_errors)
    assert (order[:16] < 16).all()
    assert torch.equal(order, WorstCaseOrder(16, tries=40).arrange(y, count_errors))


def test_adversaries_with_different_orders_are_compared_by_whole_streams() -> None:
    y = torch.arange(24) % 3
    x = 0.4 + 0.2 * nn.functional.one_hot(y, 3).double() + 0.01 * uniform(3, 24, 3)
    still = FixedPoints()
    noisy = FixedPoints("moved", (x + 0.05).clamp(max=1))
    outcomes = evaluate(
        Balancing(),
        [still, noisy],
        x,
        y,
        threat=Threat(Linf(0.1), order=WorstCaseOrder(24, tries=2)),
        batch_size=8,
    )
    same = all(torch.equal(e.batch, outcomes.batch) for e in outcomes.episodes)
    assert outcomes.unit == ("batch" if same else "stream")
    shuffled = replace(outcomes.episodes[1], batch=outcomes.episodes[1].batch.flip(0))
    assert type(outcomes).of([outcomes.episodes[0], shuffled], ("final",), "batch").unit == "stream"


def test_streams_that_cannot_be_ordered_raise_errors_before_any_attack() -> None:
    defense = Transductive(NET, ZERO)
    with pytest.raises(
        ValueError,
        match=r"24 examples is shorter than one batch of 128, so its order has no effect",
    ):
        play(defense, PGD3, X, Y, Threat(SPACE, order=SortedByLabel(256)))
    with pytest.raises(
        ValueError, match=r"window of 20 examples is not a multiple of the batch size 6.*window=18"
    ):
        play(defense, PGD3, X, Y, Threat(SPACE, order=SortedByLabel(20)), batch_size=6)
    with pytest.raises(ValueError, match=r"needs a label for every example, but 2 of 24 have none"):
        play(
            defense,
            FixedPoints(),
            X,
            torch.where(torch.arange(N) < 2, -1, Y),
            Threat(SPACE, order=SortedByLabel(12)),
            batch_size=6,
        )


def test_the_controlled_rows_are_a_fraction_of_every_batch_independent_of_its_order() -> None:
    ids = torch.arange(40)
    controlled = BatchControl(0.25).rows(ids, ids // 8)
    assert [int(controlled[ids // 8 == b].sum()) for b in range(5)] == [2] * 5
    flipped = BatchControl(0.25).rows(ids.flip(0), (ids // 8).flip(0))
    assert torch.equal(flipped.flip(0), controlled)
    assert not torch.equal(BatchControl(0.25, seed=1).rows(ids, ids // 8), controlled)
    assert BatchControl(0.01).rows(ids[:3]).sum() == 1
    assert BatchControl().rows(ids).all()


def test_rows_that_the_attacker_does_not_control_stay_clean() -> None:
    threat = Threat(SPACE, batch_control=BatchControl(0.5))
    for adversary in (PGD3, FixedPoints("all", (X + 0.05).clamp(max=1))):
        episode = play(Transductive(NET, ZERO), adversary, X, Y, threat, batch_size=8)
        controlled = threat.batch_control.rows(torch.arange(N), episode.batch)
        assert torch.equal(episode.points[~controlled], X[~controlled])
        assert (episode.points[controlled] != X[controlled]).any(1).all()
        assert episode.copies.sum() == N / 2


def test_controlled_rows_change_the_predictions_of_benign_rows() -> None:
    """The defense subtracts the mean of its batch, which a quarter of the rows can shift.

    The margin of label 0 is -(x - mean) w, and the best attack shifts the mean by
    share x radius x sum |w|. Summed over all rows the margin is constant, so an attack that counts
    all rows gains nothing.
    """
    w = torch.tensor([1.0, -2.0, 0.5, 1.5, -1.0, 0.5], dtype=torch.float64)
    net = lambda x: torch.stack([x @ w, -(x @ w)], 1) / 2  # noqa: E731
    x = 0.5 + 0.04 * (uniform(5, N, 6) - 0.5)
    y = torch.zeros(N, dtype=torch.long)
    defense = Transductive(net, ZERO)
    through = Direct("pgd", PGD(steps=40, step_size=0.02), respond=True)
    clean = play(defense, FixedPoints(), x, y, Threat(Linf(0.3)))
    every, benign = (
        Threat(Linf(0.3), batch_control=BatchControl(0.25, victims))
        for victims in ("all", "benign")
    )
    torch.testing.assert_close(
        play(defense, through, x, y, every).margin.sum(), clean.margin.sum(), rtol=0, atol=1e-12
    )
    episode = play(defense, through, x, y, benign)
    clean_rows = ~benign.batch_control.rows(torch.arange(N), episode.batch)
    gained = (episode.margin - clean.margin)[0, clean_rows]
    torch.testing.assert_close(gained, torch.full_like(gained, 0.25 * 0.3 * float(w.abs().sum())))
    assert clean.correct[0, clean_rows].sum() > 0
    assert episode.correct[0, clean_rows].sum() == 0


def test_controlled_rows_have_no_effect_on_other_rows_of_independent_defenses() -> None:
    threat = Threat(SPACE, batch_control=BatchControl(0.5))
    whole = play(Static(NET), PGD3, X, Y, Threat(SPACE))
    part = play(Static(NET), PGD3, X, Y, threat)
    controlled = threat.batch_control.rows(torch.arange(N), part.batch)
    torch.testing.assert_close(
        part.points[controlled], whole.points[controlled], rtol=0, atol=1e-12
    )
    assert part.correct[0, ~controlled].mean() == 1


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
