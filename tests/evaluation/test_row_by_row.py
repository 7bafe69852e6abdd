"""Attacks on single rows of batches whose rows influence each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.problems import STEP, Passing
from tests.zoo.adaptive.purifiers import smooth_net
from tests.zoo.adaptive.small_defenses import auto_encoders, closed_loop, images, subspaces
from torch import Tensor

import saddlepoint as sp
from saddlepoint.attacks.pgd import PGD
from saddlepoint.defenses import AmongBatch, Context, Defense, decoupled
from saddlepoint.evaluation import RowByRow, RowRounds, play, row_by_row
from saddlepoint.zoo.adaptive import SOAP

ROWS = 8


def errors(defense: Defense, adversary: sp.Adversary) -> int:
    x = torch.full((ROWS, 1, 2, 2), 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    episode = play(defense, adversary, x, y, sp.Threat(sp.Linf(0.2)))
    return int((1 - episode.correct).sum())


def test_rows_that_are_broken_at_different_steps_are_broken_together() -> None:
    pgd = sp.Direct("pgd", PGD(ROWS + 2, STEP, random_start=False))
    stopping = replace(pgd, stop_at_success=True)
    assert errors(Passing(), pgd) == 1
    assert errors(Passing(), RowByRow(pgd)) == ROWS
    assert errors(Passing(), RowRounds(stopping)) == ROWS


class Chosen(sp.Defense):
    """The batch chooses one of two rules by its mean brightness b, each with an error region.

    Dim batches, b < 0.52: rows are misclassified from 0.53 on. Bright ones: from 0.56 on. A row
    that stops at its first error under the first rule is correct under the second.
    """

    def __init__(self, border: float | None = None) -> None:
        self.border = border
        self.coupled = border is None

    def trace(self, x: Tensor, ctx: sp.Context) -> sp.Trace:
        lead = self._chosen(x) - x.flatten(1).mean(1)
        return sp.Trace((sp.View("final", torch.stack([lead, -lead], 1)),))

    def decouple(self, x: Tensor) -> Chosen:
        return Chosen(self._chosen(x))

    def _chosen(self, x: Tensor) -> float:
        if self.border is not None:
            return self.border
        return 0.53 if x.mean() < 0.52 else 0.56


def test_later_rounds_attack_what_the_batch_of_the_last_points_chooses() -> None:
    pgd = PGD(10, STEP, random_start=False)
    stopping = sp.Direct("pgd", pgd, stop_at_success=True)
    assert errors(Chosen(), RowRounds(stopping)) == 0
    assert errors(Chosen(), RowRounds(stopping, (stopping,))) == ROWS


class Alternating(sp.Defense):
    """The batch chooses the first pixel or the second one, whichever is darker on average.

    A row is misclassified if the chosen pixel is brighter than 0.55. Rows that move only the chosen
    pixel make the batch choose the other one.
    """

    def __init__(self, pixel: int | None = None) -> None:
        self.pixel = pixel
        self.coupled = pixel is None

    def trace(self, x: Tensor, ctx: sp.Context) -> sp.Trace:
        lead = 0.55 - x.flatten(1)[:, self._chosen(x)]
        return sp.Trace((sp.View("final", torch.stack([lead, -lead], 1)),))

    def decouple(self, x: Tensor) -> Alternating:
        return Alternating(self._chosen(x))

    def _chosen(self, x: Tensor) -> int:
        return int(x.flatten(1)[:, :2].mean(0).argmin()) if self.pixel is None else self.pixel


def test_rows_are_attacked_for_both_choices_of_a_batch_that_alternates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopping = sp.Direct("pgd", PGD(20, STEP, random_start=False), stop_at_success=True)
    rounds = RowRounds(stopping, 4 * (stopping,))
    assert errors(Alternating(), rounds) == ROWS
    monkeypatch.setattr(row_by_row, "_MODELS", 1)
    assert errors(Alternating(), rounds) == 0


def test_rows_that_are_broken_are_not_attacked_again() -> None:
    x = torch.full((ROWS, 1, 2, 2), 0.5)
    x[:3] = 0.6
    y = torch.zeros(ROWS, dtype=torch.long)
    stopping = sp.Direct("pgd", PGD(10, STEP, random_start=False), stop_at_success=True)
    episode = play(Chosen(), RowRounds(stopping, (stopping,)), x, y, sp.Threat(sp.Linf(0.2)))
    assert torch.equal(episode.points[:3], x[:3])
    assert not episode.correct.any()
    assert (episode.backward[:3] == 0).all()
    assert (episode.backward[3:] > 0).all()


def test_every_row_is_charged_where_all_have_to_be_evaluated() -> None:
    x = torch.full((ROWS, 1, 2, 2), 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    stopping = sp.Direct("pgd", PGD(10, STEP, random_start=False), stop_at_success=True)
    adversary = RowRounds(stopping)
    episode = play(Passing(), adversary, x, y, sp.Threat(sp.Linf(0.2)))
    assert len(episode.forward.unique()) == 1
    assert episode.forward[0] <= adversary.cost().forward


def test_a_continued_attack_has_the_last_rounds() -> None:
    first = sp.Direct("a", PGD(2))
    rounds = RowRounds(first, (first.scaled(2), first.scaled(4)))
    continued = rounds.continued(torch.zeros(ROWS, 1, 2, 2))
    assert continued.attacks == rounds.attacks[1:]
    doubled = rounds.map_direct(lambda direct: direct.scaled(2))
    assert [one.attack for one in doubled.attacks] == [PGD(4), PGD(8), PGD(16)]


def test_rounds_continue_from_given_points() -> None:
    """At points of the second rule, one round is enough."""
    start = torch.full((ROWS, 1, 2, 2), 0.54)
    stopping = sp.Direct("pgd", PGD(10, STEP, random_start=False), stop_at_success=True)
    assert errors(Chosen(), RowRounds(stopping, start=start)) == ROWS


def test_rounds_need_outputs_that_can_be_repeated() -> None:
    defense = Chosen()
    defense.random = True
    with pytest.raises(ValueError, match="needs a deterministic defense"):
        errors(defense, RowRounds(sp.Direct("pgd", PGD(2), stop_at_success=True)))


COUPLED = {
    "projections": lambda: closed_loop(subspaces()),
    "auto-encoders": lambda: closed_loop(auto_encoders()),
    "SOAP": lambda: SOAP(smooth_net()),
    "any other": lambda: Passing(),
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_decoupled_defense_has_independent_rows_and_the_same_outputs(name: str) -> None:
    defense = COUPLED[name]()
    x = images(6)
    if name == "SOAP":
        x = x[:, :1, :4, :4].contiguous()
    single = decoupled(defense, x)
    assert not single.coupled
    assert isinstance(single, AmongBatch) == (name == "any other")
    expected = defense.respond(x, Context.seeded(0, 6))
    found = single.respond(x, Context.seeded(0, 6))
    # Adam divides gradients by their size; see the tests of closed-loop control.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    rows = torch.tensor([4, 1])
    few = single.restrict(rows).respond(x[rows], Context.seeded(0, 2))
    torch.testing.assert_close(few, expected[rows], rtol=0, atol=1e-9)
    moved = single.respond(1 - x, Context.seeded(0, 6))
    alone = single.restrict(rows).respond(1 - x[rows], Context.seeded(0, 2))
    if name != "any other":  # there the other rows keep their points
        torch.testing.assert_close(alone, moved[rows], rtol=0, atol=1e-9)


def test_rules_for_steps_of_the_whole_batch_are_accepted() -> None:
    class Rounded(sp.Defense):
        coupled = True

        def trace(self, x: Tensor, ctx: Context) -> sp.Trace:
            v = ctx.through("round", torch.round, x - 0.1 * x.mean(0))
            return sp.Trace((sp.View("final", v.flatten(1)),))

    x = images(6)
    single = AmongBatch(Rounded(), x)
    ctx = Context.seeded(0, 6)
    ctx = replace(ctx, rules={"round": sp.BPDA()})
    z = x.clone().requires_grad_()
    single.respond(z, ctx).sum().backward()
    ctx.check_rules()
    assert z.grad is not None
    assert z.grad.abs().sum() > 0
