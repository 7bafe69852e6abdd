"""Adversaries and their combinations: attacked rows, random keys, proposed points, access, cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tests.problems import (
    Affine,
    Centring,
    Noisy,
    Purifier,
    Quantized,
    Relu,
    Static,
    Transductive,
    smooth,
    uniform,
)
from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import cross_entropy, margin, targeted_margin
from saddlepoint.attacks.oracle import BudgetExceeded
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.defenses import Access, BlackBox, Context, Defense, Trace
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Cascade,
    Direct,
    FixedPoints,
    MultiTarget,
    Restarts,
    Threat,
    Transfer,
)
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import BPDA, SPSA, Evaluation

SPACE = Linf(0.1)
X = uniform(0, 24, 6)
NET = smooth(1)
Y = NET(X).argmax(1)
PGD5 = Direct("pgd", PGD(steps=5))


def context(threat: Threat | None = None, n: int = len(X), seed: int = 0) -> AttackContext:
    return AttackContext.open(threat or Threat(SPACE), torch.arange(n), seed)


@dataclass(frozen=True)
class Scripted(Adversary):
    """Proposes given points and records the ids of the attacked examples."""

    propose: Callable[[Tensor], AttackResult]
    attacked: list[list[int]] = field(default_factory=list)
    name: str = "scripted"
    needs: Access = "decision"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self.attacked.append(context.ids.tolist())
        return self.propose(x)


def moved(by: float) -> Callable[[Tensor], AttackResult]:
    return lambda x: AttackResult(x + by, x + by)


def evaluation(values: list[float], success: list[bool]) -> Evaluation:
    return Evaluation(torch.tensor(values), torch.tensor(success))


def test_best_so_far_prefers_success_then_loss_and_the_max_loss_point_loss_only() -> None:
    x = torch.zeros(1, 2)
    best = BestSoFar(x, coupled=False)
    assert best.update(x + 1, evaluation([5.0], [False])).tolist() == [True]
    assert best.update(x + 2, evaluation([1.0], [True])).tolist() == [False]
    assert (best.result.point.unique(), best.result.max_loss_point.unique()) == (2, 1)
    best.update(x + 3, evaluation([9.0], [False]))
    best.update(x + 4, evaluation([2.0], [True]))
    assert (best.result.point.unique(), best.result.max_loss_point.unique()) == (4, 3)
    best.update(x + 5, evaluation([float("nan")], [False]))
    assert (best.result.point.unique(), best.result.max_loss_point.unique()) == (4, 3)


def test_best_so_far_of_coupled_rows_keeps_whole_batches() -> None:
    x = torch.zeros(3, 2)
    best = BestSoFar(x, coupled=True)
    updates = [
        ([9.0, 0, 0], [True, False, False], 1, 1),
        # As many misclassified, lower total loss: every row keeps its point.
        ([0.0, 1, 1], [False, True, False], 1, 1),
        # More misclassified: every row is replaced, although the first has a lower loss.
        ([0.0, 1, 1], [False, True, True], 3, 1),
        ([99.0, 0, 0], [True, False, False], 3, 4),
    ]
    for k, (values, success, point, max_loss_point) in enumerate(updates, start=1):
        best.update(x + k, evaluation(values, success))
        assert (best.point == point).all()
        assert (best.max_loss_point == max_loss_point).all()


def test_an_attack_on_coupled_rows_returns_a_batch_that_was_evaluated_as_a_whole() -> None:
    queried: list[Tensor] = []

    class Recording(Centring):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            queried.append(x.detach())
            return super().trace(x, ctx)

    for attack in (PGD(steps=6), APGD(steps=12)):
        queried.clear()
        found = Direct("coupled", attack, loss=cross_entropy).move(context(), Recording(NET), X, Y)
        assert any(torch.equal(found.point, x) for x in queried)
        assert any(torch.equal(found.max_loss_point, x) for x in queried)


def test_a_cascade_attacks_only_unbroken_rows_of_independent_defenses() -> None:
    """A threshold at 0: the first adversary moves up by 0.05 and breaks rows within 0.05 of it."""
    x = torch.tensor([[-0.01], [-0.2], [-0.04], [-0.06]], dtype=torch.float64)
    y = torch.zeros(4, dtype=torch.long)
    space = Ball(float("inf"), 0.1, (-1, 1))
    defense = Static(Affine.binary(torch.tensor([-1.0], dtype=torch.float64)))
    first = Scripted(moved(0.05))
    second = Scripted(moved(0.1))
    third = Scripted(moved(0.0))
    sub_context = context(Threat(space), 4)
    found = Cascade("all", (first, second, third)).move(sub_context, defense, x, y)
    assert [a.attacked for a in (first, second, third)] == [[[0, 1, 2, 3]], [[1, 3]], [[1]]]
    assert sub_context.meter.forward.tolist() == [1, 3, 1, 2]
    torch.testing.assert_close(
        found.point, x + torch.tensor([[0.05], [0.1], [0.05], [0.1]], dtype=torch.float64)
    )


def test_a_cascade_attacks_all_rows_of_coupled_defenses() -> None:
    for defense in (Centring(NET), Transductive(NET, X.mean(0))):
        first = Scripted(moved(0.05))
        second = Scripted(moved(0.02))
        found = Cascade("all", (first, second)).move(context(), defense, X * 0.5, Y)
        assert first.attacked == second.attacked == [list(range(24))]
        # The batch of one adversary, not a combination of rows of both.
        assert len(torch.unique((found.point - X * 0.5).round(decimals=6))) == 1


@pytest.mark.parametrize(
    "defense",
    [Static(NET), Centring(NET), Transductive(NET, X.mean(0))],
    ids=["rows", "coupled", "batch"],
)
def test_a_cascade_is_at_least_as_strong_as_its_members(defense: Defense) -> None:
    members = (
        PGD5,
        Direct("apgd", APGD(steps=10), loss=cross_entropy),
        Direct("through", PGD(steps=5), respond=True),
    )
    threat = Threat(SPACE)
    correct = []
    for adversary in (*members, Cascade("all", members)):
        correct.append(play(defense, adversary, X, Y, threat).correct.sum())
    assert correct[-1] <= min(correct[:-1])


def test_cost_and_points_of_a_row_in_a_cascade_do_not_depend_on_other_rows() -> None:
    """Random keys are numbered by the passes of the row. Some rows have two different points."""
    some = Scripted(
        lambda x: AttackResult(
            (x + 0.01).clamp(max=1), torch.where(x[:, :1] > 0.5, x, (x + 0.01).clamp(max=1))
        )
    )
    cascade = Cascade("two", (some, Direct("pgd", PGD(steps=3))))
    defense = Noisy(NET, 0.2)
    threat = Threat(SPACE, draws=2)
    together = play(defense, cascade, X, Y, threat)
    alone = play(defense, cascade, X, Y, threat, batch_size=1)
    assert torch.equal(together.forward, alone.forward)
    assert torch.equal(together.backward, alone.backward)
    # The rounding of a matrix product depends on the shape of the batch; sign steps do not amplify
    # the difference.
    torch.testing.assert_close(together.points, alone.points, rtol=0, atol=1e-12)


def test_combinations_of_no_adversaries_raise_errors() -> None:
    for attempt in (
        lambda: Cascade("none", ()),
        lambda: Restarts(PGD5, 0).move(context(), Static(NET), X, Y),
    ):
        with pytest.raises(
            ValueError, match="combines no adversaries, so it would propose the clean images"
        ):
            attempt()


def test_the_first_restart_is_the_plain_adversary_and_the_others_have_other_keys() -> None:
    # Never misclassified, so that all rows are attacked in every restart.
    defense = Static(lambda x: torch.stack([x.sum(1) * 0 + 1, x.sum(1) * 1e-9], 1))
    y = torch.zeros(24, dtype=torch.long)
    starts: list[Tensor] = []

    @dataclass(frozen=True)
    class Start:
        needs: Access = "decision"
        calls: int = 0

        def __call__(self, oracle: Any, center: Tensor, space: Ball, keys: Any) -> AttackResult:
            starts.append(space.sample(center, keys))
            return AttackResult(starts[-1], starts[-1])

    plain = Direct("start", Start())
    plain.move(context(), defense, X, y)
    Restarts(Restarts(plain, 2), 2).move(context(), defense, X, y)
    assert torch.equal(starts[0], starts[1])
    assert len({float(s[0, 0]) for s in starts[1:]}) == 4  # two times two, all different
    assert torch.equal(
        Restarts(PGD5, 1).move(context(), Static(NET), X, Y).point,
        PGD5.move(context(), Static(NET), X, Y).point,
    )


def test_restarts_have_other_attacker_keys_for_private_and_public_randomness() -> None:
    for randomness in ("private", "public"):
        sub_context = context(Threat(SPACE, randomness=randomness))
        again = replace(sub_context, attempt=1)
        assert not torch.equal(sub_context.attacker_keys().state, again.attacker_keys().state)
        assert torch.equal(sub_context.defender_keys(0).state, again.defender_keys(0).state)
        assert torch.equal(
            sub_context.simulated_keys().state, sub_context.defender_keys(0).state
        ) == (randomness == "public")
    private = context()
    assert not torch.equal(
        private.simulated_keys().state, replace(private, attempt=1).simulated_keys().state
    )


def test_targets_are_sorted_by_the_clean_logits_of_each_row() -> None:
    weight = torch.eye(4, 6, dtype=torch.float64)
    defense = Static(Affine(weight, torch.zeros(4, dtype=torch.float64)))
    seen = []

    def recording(target: Tensor) -> Any:
        seen.append(target)
        return lambda logits, y: (
            targeted_margin(target)(logits, y).clamp(max=0) * 0 + logits.sum(-1) * 0 - 1
        )

    order = X[:, :4].argsort(1, descending=True)
    y = order[:, 0]
    MultiTarget(Direct("targets", PGD(steps=1)), targets=9, loss=recording).move(
        context(Threat(Linf(1e-9))), defense, X, y
    )
    assert len(seen) == 3  # all other classes
    assert torch.equal(torch.stack(seen, 1), order[:, 1:])


def test_targets_stay_with_their_rows_when_other_rows_are_broken() -> None:
    """Broken rows are not attacked again; the k-th target of a row stays its k-th target."""
    net = Affine.random(3, 5, 6)
    space = Linf(0.05)
    y = net(X).argmax(1)
    seen = []

    def recording(target: Tensor) -> Any:
        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            seen.append((labels, target))
            return targeted_margin(target)(logits, labels)

        return loss

    episode = play(
        Static(net), MultiTarget(Direct("t", PGD(steps=2)), 4, recording), X, y, Threat(space)
    )
    assert len({len(labels) for labels, _ in seen}) > 1
    assert all((labels != target).all() for labels, target in seen)
    assert torch.equal(episode.correct[0] == 0, net.worst_margin(X, y, space) > 0)


def test_transfer_proposes_points_of_highest_loss_and_no_clean_copies() -> None:
    source = Static(Relu.random(5, 6, 10, 4))
    threat = Threat(SPACE)
    wrong_labels = (source.net(X).argmax(1) + 1) % 4
    for y in (Y, wrong_labels):
        own = PGD5.move(context(threat), source, X, y)
        found = Transfer(PGD5, source).move(context(threat), Static(NET), X, y)
        assert torch.equal(found.point, own.max_loss_point)
        assert torch.equal(found.max_loss_point, own.max_loss_point)
        assert not play(Static(NET), Transfer(PGD5, source), X, y, threat).copies.any()
    scripted = Scripted(lambda x: AttackResult(x + 0.01, x + 0.02))
    found = Transfer(scripted, source).move(context(), Static(NET), X, Y)
    assert torch.equal(found.point, X + 0.02)


def test_transfer_needs_no_access_to_the_defense_for_its_source() -> None:
    episode = play(
        BlackBox(NET, classes=None),
        Transfer(PGD5, Static(NET)),
        X,
        Y,
        Threat(SPACE, access="decision"),
    )
    assert (episode.correct == 0).any()


@pytest.mark.parametrize("access", ["decision", "score"])
def test_gradients_need_gradient_access(access: Access) -> None:
    with pytest.raises(
        PermissionError,
        match=f"pgd needs gradient access; the threat model grants {access} access",
    ):
        play(Static(NET), PGD5, X, Y, Threat(SPACE, access=access))
    with pytest.raises(
        PermissionError, match=f"pgd needs gradient access, but only {access} access is available"
    ):
        PGD5.move(context(Threat(SPACE, access=access)), Static(NET), X, Y)


def test_a_black_box_gives_no_gradients_and_labels_give_no_scores() -> None:
    with pytest.raises(PermissionError, match="the defense gives score access"):
        play(BlackBox(NET), PGD5, X, Y, Threat(SPACE))
    spsa = Direct("spsa", PGD(steps=2), estimator=SPSA(8))
    play(BlackBox(NET), spsa, X, Y, Threat(SPACE))
    with pytest.raises(
        PermissionError, match=r"spsa needs score access.*the defense gives decision access"
    ):
        play(BlackBox(lambda x: NET(x).argmax(1), classes=4), spsa, X, Y, Threat(SPACE))


def test_a_combination_needs_the_strongest_access_of_its_members() -> None:
    cheap: Adversary = Scripted(moved(0.0))
    assert (
        Cascade("c", (cheap, PGD5)).needs
        == Restarts(PGD5).needs
        == MultiTarget(PGD5).needs
        == "gradient"
    )
    assert (
        Cascade("c", (cheap, cheap)).needs
        == Transfer(PGD5, Static(NET)).needs
        == FixedPoints().needs
        == "decision"
    )
    assert Direct("spsa", PGD(), estimator=SPSA()).needs == "score"


def test_a_query_budget_is_exact() -> None:
    assert play(Static(NET), PGD5, X, Y, Threat(SPACE, queries=6)).forward.tolist() == [6] * 24
    with pytest.raises(
        BudgetExceeded,
        match=r"allows 5 queries per example, the attack asked for 6. Give the attack fewer steps",
    ):
        play(Static(NET), PGD5, X, Y, Threat(SPACE, queries=5))
    with pytest.raises(
        BudgetExceeded, match="allows 10 queries per example, the attack asked for 17"
    ):
        play(
            Static(NET),
            Direct("spsa", PGD(steps=1), estimator=SPSA(8)),
            X,
            Y,
            Threat(SPACE, queries=10),
        )


def test_simulations_are_charged_once_per_draw_and_once_for_deterministic_defenses() -> None:
    for defense, passes in ((Static(NET), 1), (Noisy(NET), 5)):
        sub_context = context(Threat(SPACE, draws=5))
        sub_context.simulate(defense, X, Y)
        assert sub_context.meter.forward.tolist() == [passes] * 24


def test_a_simulation_succeeds_where_most_draws_are_wrong() -> None:
    defense = Noisy(NET, 2.0)
    sub_context = context(Threat(SPACE, draws=7))
    simulation = sub_context.simulate(defense, X, Y)
    answers = [
        defense.respond(X, Context(sub_context.simulated_keys().fold_in(-1).fold_in(k)))
        for k in range(7)
    ]
    wrong = torch.stack([z.argmax(1) != Y for z in answers])
    assert torch.equal(simulation.evaluation.success, wrong.sum(0) > 3)
    assert torch.equal(simulation.always_misclassified, wrong.all(0))
    torch.testing.assert_close(
        simulation.evaluation.value, torch.stack([margin(z, Y) for z in answers]).mean(0)
    )
    assert simulation.always_misclassified.sum() < simulation.evaluation.success.sum() < 24


def test_an_adversary_with_bpda_breaks_rounding_and_one_without_does_not() -> None:
    defense = Quantized(NET, 8)
    y = NET(defense.quantize(X)).argmax(1)
    exact, bpda = (
        play(
            defense,
            Direct("pgd", PGD(steps=20, random_start=False), rules=rules),
            X,
            y,
            Threat(Linf(0.15)),
        ).correct.mean()
        for rules in ({}, {"quantize": BPDA()})
    )
    assert exact == 1
    assert bpda < 0.5


def test_an_adversary_aims_at_the_views_that_it_keeps() -> None:
    defense = Purifier(NET, steps=3)
    kept = Direct("first", PGD(steps=2), keep=frozenset({"purify/1", "purify/3"}))
    kept.move(context(), defense, X, Y)
    with pytest.raises(ValueError, match=r"no view called \['purify/9'\]; this defense shows"):
        replace(kept, keep=frozenset({"purify/3", "purify/9"})).move(context(), defense, X, Y)
