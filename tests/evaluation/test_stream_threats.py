"""Threats to defenses that learn: who sees what, in which order a stream is sent, who controls which rows, and what queries do."""

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
    AttackContext,
    BatchControl,
    Direct,
    FixedPoints,
    NaturalOrder,
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


# ---- the threat is printed, and an old one keeps its name ------------------------------------------------------------------------


def test_a_threat_without_a_stream_is_described_as_it_always_was() -> None:
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
    assert (
        str(Threat(Linf(0.25)))
        == "Linf radius 0.25, gradient access, unlimited queries, private coins, judged over one draw"
    )


def test_whatever_differs_is_described_and_printed() -> None:
    plain = Threat(SPACE)
    cases = {
        "one round": replace(plain, rounds="one"),
        "hidden state": replace(plain, state_visible=False),
        "sorted by label in windows of 8": replace(plain, order=SortedByLabel(8)),
        "worst of 5 orders in windows of 8": replace(plain, order=WorstCaseOrder(8, tries=3)),
        "25% of each batch controlled, success counted on benign rows": replace(
            plain, batch_control=BatchControl(0.25, "benign")
        ),
        "live queries": replace(plain, access="score", online_queries=True),
        "fixed coins": replace(plain, randomness="fixed"),
    }
    for text, threat in cases.items():
        assert text in str(threat)
        assert describe(threat) != describe(plain)
    assert len({json.dumps(describe(threat)) for threat in cases.values()}) == len(cases)
    assert describe(replace(plain, order=NaturalOrder(), batch_control=BatchControl())) == describe(
        plain
    )


def test_threats_that_contradict_themselves_are_refused() -> None:
    for refused, complaint in {
        (lambda: Threat(SPACE, rounds="one", order=SortedByLabel())): "its order means nothing",
        (lambda: Threat(SPACE, online_queries=True)): "shows no gradients: use access='score'",
        (lambda: Threat(SPACE, queries=9, order=WorstCaseOrder())): "no budget per example counts",
        (lambda: BatchControl(0.0)): "above 0 and at most 1, got share=0.0",
        (lambda: BatchControl(1.0, "benign")): "needs rows that the attacker does not control",
        (lambda: SortedByLabel(0)): "holds at least one, got window=0",
        (lambda: WorstCaseOrder(8, -1)): "at least 0 tries",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            refused()


# ---- rounds and state ------------------------------------------------------------------------------------------------------------


def test_in_one_round_the_whole_stream_is_one_batch() -> None:
    for threat, batches in ((Threat(SPACE, rounds="one"), 1), (Threat(SPACE), 4)):
        episode = play(Transductive(NET, ZERO), FixedPoints(), X, Y, threat, batch_size=6)
        assert len(episode.batch.unique()) == batches
        means = torch.stack([X[episode.batch == b].mean(0) for b in episode.batch])
        assert torch.equal(episode.correct[0] == 1, NET(X - means).argmax(1) == Y)
        assert len(Job(Transductive(NET, ZERO), X, Y, threat, 0, 6).groups) == batches


class Drifting(Online):
    """An online defense that adds noise to what it learns: its state cannot be simulated to the bit."""

    random = True

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Drifting(
            self.net, (self.mu + x.mean(0) + 0.1 * ctx.randn(6, dtype=torch.float64).mean(0)) / 2
        )


@dataclass(frozen=True)
class Peeking:
    """Writes down which state it was shown."""

    states: list[Tensor]
    name: str = "peeking"
    needs: Access = "decision"

    def move(self, context: AttackContext, defense: Any, x: Tensor, y: Tensor) -> AttackResult:
        self.states.append(defense.mu)
        return AttackResult(x, x)


def test_a_leaking_state_is_the_defenders_and_a_hidden_one_the_attackers_own_simulation() -> None:
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
            Peeking(states),
            X,
            Y,
            Threat(SPACE, state_visible=state_visible),
            batch_size=6,
        )
    judged = real[::2]  # every other answer is for choosing among attacks
    assert all(torch.equal(a, b) for a, b in zip(shown[True][1:], judged, strict=False))
    assert torch.equal(shown[False][0], ZERO)
    assert not any(torch.equal(a, b) for a, b in zip(shown[False][1:], judged, strict=False))
    assert (shown[False][-1] - shown[True][-1]).abs().amax() < 0.3  # the same law, other coins
    public: list[Tensor] = []
    play(
        Watched(NET, ZERO),
        Peeking(public),
        X,
        Y,
        Threat(SPACE, state_visible=False, randomness="public"),
        batch_size=6,
    )
    assert all(torch.equal(a, b) for a, b in zip(public, shown[True], strict=True))


def test_an_online_defense_without_coins_cannot_hide_its_state() -> None:
    hidden, seen = (
        play(
            Online(NET, ZERO), PGD3, X, Y, Threat(SPACE, state_visible=state_visible), batch_size=6
        )
        for state_visible in (False, True)
    )
    assert torch.equal(hidden.points, seen.points)
    assert torch.equal(hidden.margin, seen.margin)


# ---- coins -----------------------------------------------------------------------------------------------------------------------


def test_fixed_coins_are_tossed_once_for_all_examples_and_answers_and_are_known() -> None:
    drawn: list[Tensor] = []

    class Recording(Noisy):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            drawn.append(ctx.randn_like(x))
            return Static(self.net).trace(x + self.scale * drawn[-1], ctx)

    threat = Threat(SPACE, randomness="fixed", draws=5)
    episode = play(Recording(NET, 0.3), PGD3, X, Y, threat, batch_size=8)
    assert len(torch.cat(drawn).unique(dim=0)) == 1
    assert torch.equal(episode.correct, episode.chosen)
    sub_context = AttackContext.open(threat, torch.arange(4), 0)
    assert torch.equal(sub_context.simulated_keys().state, sub_context.defender_keys(3).state)
    averaged = replace(PGD3, estimator=EoT(3))
    assert play(Recording(NET, 0.3), averaged, X, Y, threat).correct.shape == (1, N)


# ---- order -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [64, 50])
def test_sorting_by_label_keeps_every_window_and_orders_its_batches(n: int) -> None:
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
    assert torch.equal(same[:3], same[:3].sort().values)  # equal labels stay as they came


def test_a_sorted_stream_is_recorded_example_by_example_where_they_were() -> None:
    threat = Threat(SPACE, order=SortedByLabel(12))
    defense = Transductive(NET, ZERO)
    episode = play(defense, PGD3, X, Y, threat, batch_size=6)
    order = threat.order.arrange(Y, lambda _: 0.0)
    sent = play(defense, PGD3, X[order], Y[order], Threat(SPACE), ids=order, batch_size=6)
    for name in ("points", "batch", "size", "copies", "forward"):
        assert torch.equal(getattr(episode, name)[order], getattr(sent, name))
    assert torch.equal(episode.correct[:, order], sent.correct)
    assert threat.space.contains(episode.points, X).all()
    job = Job(defense, X, Y, threat, 0, 6)
    assert [len(rows) for rows in job.groups] == [12, 12]
    parts = torch.cat([job.play(PGD3, rows).points for rows in job.groups])
    assert torch.equal(parts, episode.points)


class Balancing(Defense):
    """Takes away the mean logits of its batch, as if all classes came equally often: sorted batches are its ruin."""

    coupled = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = 4 * x[:, :3] - 2
        return Trace((View("final", logits - logits.mean(0)),))


def test_a_searched_order_is_at_least_as_bad_for_the_defender_as_those_it_starts_from() -> None:
    """Three classes, one pixel each: mixed batches are answered rightly, sorted ones are not told apart."""
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


def test_the_search_climbs_whatever_harm_it_is_told() -> None:
    """Harm: how many places hold another example than in the natural order."""

    def harm(order: Tensor) -> float:
        return float((order != torch.arange(32)).sum())

    y = torch.zeros(32, dtype=torch.long)  # sorting changes nothing
    few, many = (harm(WorstCaseOrder(16, tries=t).arrange(y, harm)) for t in (1, 40))
    assert 0 < few < many
    order = WorstCaseOrder(16, tries=40).arrange(y, harm)
    assert (order[:16] < 16).all()
    assert torch.equal(order, WorstCaseOrder(16, tries=40).arrange(y, harm))


def test_adversaries_that_searched_orders_of_their_own_are_compared_by_whole_streams() -> None:
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


def test_streams_that_cannot_be_ordered_are_refused_before_anybody_moves() -> None:
    defense = Transductive(NET, ZERO)
    with pytest.raises(
        ValueError,
        match=r"24 examples is shorter than one batch of 128, so there is nothing to order",
    ):
        play(defense, PGD3, X, Y, Threat(SPACE, order=SortedByLabel(256)))
    with pytest.raises(
        ValueError, match=r"window of 20 examples is no whole number of batches of 6.*window=18"
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


# ---- control ---------------------------------------------------------------------------------------------------------------------


def test_the_attackers_rows_are_a_share_of_every_batch_whatever_its_order_and_the_seed_of_the_game() -> (
    None
):
    ids = torch.arange(40)
    mine = BatchControl(0.25).rows(ids, ids // 8)
    assert [int(mine[ids // 8 == b].sum()) for b in range(5)] == [2] * 5
    flipped = BatchControl(0.25).rows(ids.flip(0), (ids // 8).flip(0))
    assert torch.equal(flipped.flip(0), mine)
    assert not torch.equal(BatchControl(0.25, seed=1).rows(ids, ids // 8), mine)
    assert BatchControl(0.01).rows(ids[:3]).sum() == 1
    assert BatchControl().rows(ids).all()


def test_rows_that_are_not_the_attackers_stay_clean_whatever_it_proposes() -> None:
    threat = Threat(SPACE, batch_control=BatchControl(0.5))
    for adversary in (PGD3, FixedPoints("all", (X + 0.05).clamp(max=1))):
        episode = play(Transductive(NET, ZERO), adversary, X, Y, threat, batch_size=8)
        mine = threat.batch_control.rows(torch.arange(N), episode.batch)
        assert torch.equal(episode.points[~mine], X[~mine])
        assert (episode.points[mine] != X[mine]).any(1).all()
        assert episode.copies.sum() == N / 2


def test_a_minority_leads_the_defense_astray_about_rows_that_nobody_touched() -> None:
    """The defense subtracts the mean of its batch: whoever moves a quarter of the rows moves the mean of all.

    The margin of label 0 is -(x - mean) w, and the attacker's best move shifts the mean by share x radius x sum |w|. Counted over
    all rows nothing can be gained, since what a mean gives to some it takes from others.
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
    theirs = ~benign.batch_control.rows(torch.arange(N), episode.batch)
    gained = (episode.margin - clean.margin)[0, theirs]
    torch.testing.assert_close(gained, torch.full_like(gained, 0.25 * 0.3 * float(w.abs().sum())))
    assert clean.correct[0, theirs].sum() > 0
    assert episode.correct[0, theirs].sum() == 0


def test_alone_among_independent_rows_a_minority_harms_nobody_else() -> None:
    threat = Threat(SPACE, batch_control=BatchControl(0.5))
    whole = play(Static(NET), PGD3, X, Y, Threat(SPACE))
    part = play(Static(NET), PGD3, X, Y, threat)
    mine = threat.batch_control.rows(torch.arange(N), part.batch)
    torch.testing.assert_close(part.points[mine], whole.points[mine], rtol=0, atol=1e-12)
    assert part.correct[0, ~mine].mean() == 1


# ---- live queries ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asks:
    """Asks about the clean batch again and again."""

    times: int
    coupled: list[bool]
    calls: int = 0
    needs = "score"

    def __call__(self, oracle: Any, center: Tensor, space: Any, keys: Keys) -> AttackResult:
        self.coupled.append(oracle.coupled)
        for _ in range(self.times):
            oracle.score(center)
        return AttackResult(center, center)


def test_live_queries_teach_an_online_defense_and_rehearsed_ones_do_not() -> None:
    """mu <- (mu + mean x) / 2 from zero: after k batches of the same mean it is (1 - 2^-k) of it."""
    states: list[Tensor] = []

    class Watched(Online):
        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            states.append((self.mu + x.mean(0)) / 2)
            return Watched(self.net, states[-1])

    coupled: list[bool] = []
    for live, batches in (
        (False, 1),
        (True, 4),
    ):  # the answer alone, or three queries and the answer
        play(
            Watched(NET, ZERO),
            Direct("asks", Asks(3, coupled)),
            X,
            Y,
            Threat(SPACE, "score", online_queries=live),
        )
        torch.testing.assert_close(states[-1], X.mean(0) * (1 - 0.5**batches))
    assert coupled == [False, True]  # a live query is learned from as a whole
    with pytest.raises(PermissionError, match="pgd asks for gradient access"):
        play(Online(NET, ZERO), PGD3, X, Y, Threat(SPACE, "score", online_queries=True))


def test_a_black_box_attack_plays_against_the_live_defense_from_batch_to_batch() -> None:
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


def test_no_attacker_can_make_a_live_defense_toss_the_same_coins_again() -> None:
    drawn: list[Tensor] = []

    class Recording(Noisy):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            drawn.append(ctx.randn_like(x))
            return Static(self.net).trace(x, ctx)

    play(
        Recording(NET),
        Direct("asks", Asks(4, [])),
        X,
        Y,
        Threat(SPACE, "score", online_queries=True, randomness="fixed"),
    )
    assert len({float(noise[0, 0]) for noise in drawn[:4]}) == 4


# ---- a defense that changes itself ----------------------------------------------------------------------------------------------


class Careless(Defense):
    """Learns in place, in one of several ways."""

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
        ("counter", "Careless.seen"),
        ("tensor", "Careless.known"),
    ],
)
def test_a_defense_that_changes_itself_is_refused_by_the_place_that_changed(
    how: str, place: str
) -> None:
    with pytest.raises(
        ValueError,
        match=rf"adapt\(\) changed the defense itself \(.*{place}.*expected a new object",
    ):
        play(Careless(how), FixedPoints(), X, Y, Threat(SPACE))


def test_a_careful_defense_may_be_asked() -> None:
    assert play(Careless("not at all"), FixedPoints(), X, Y, Threat(SPACE)).correct.shape == (1, N)
