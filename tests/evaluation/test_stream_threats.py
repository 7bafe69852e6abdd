"""Threat models of streams: visible state, known randomness, and controlled rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.evaluation.stream_problem import NET, PGD3, SPACE, ZERO, N, X, Y
from tests.problems import Noisy, Online, Static, Transductive, uniform
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.cells import Job
from saddlepoint.defenses import Access, Context, Defense, Trace
from saddlepoint.describe import describe
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    BatchControl,
    Direct,
    FixedPoints,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT


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
