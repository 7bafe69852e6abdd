"""Attacks on batches whose rows influence each other."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from tests.problems import Passing
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.attacks.aims import last_value_summed_gradient, last_view
from saddlepoint.attacks.losses import SmoothError
from saddlepoint.attacks.pgd import PGD
from saddlepoint.audits.planning.facts import TargetFacts
from saddlepoint.audits.planning.suite import compose
from saddlepoint.audits.probes.stage import _check_decoupled
from saddlepoint.audits.probes.traits import TraitName, Traits, present
from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.remedies.rows import continued_rows
from saddlepoint.audits.target.admission import TargetError
from saddlepoint.evaluation import Annealed, Cascade, FixedPoints, RowRounds, RowSearch

N = 40


class Balanced(nn.Module):
    """Class scores that are balanced over the batch: every class gets an equal share."""

    def __init__(self) -> None:
        super().__init__()
        self.net = zoo.load("digits-pgd")

    def forward(self, x: Tensor) -> Tensor:
        scores = self.net(x).log_softmax(1) / 2
        rows = x.new_zeros(len(x), 1)
        columns = x.new_zeros(1, 10)
        for _ in range(5):
            columns = math.log(len(x) / 10) - (scores + rows).logsumexp(0, keepdim=True)
            rows = -(scores + columns).logsumexp(1, keepdim=True)
        return scores + rows + columns


class BalancedDefense(sp.Plain):
    coupled = True


@pytest.mark.parametrize("steps", [4])
def test_the_steps_of_pgd_decrease_linearly_to_one_part_of_the_first(steps: int) -> None:
    lengths = PGD(steps, 0.4, decreasing=True).lengths(sp.Linf(1.0))
    assert lengths == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-12)


def test_a_count_of_errors_breaks_more_of_a_balanced_batch_than_the_sum_of_margins() -> None:
    """Rows that are already misclassified would use up the influence on the batch."""
    x, y = sp.load_data("digits", n=N)
    pgd = sp.PGD(10, 0.045, momentum=0.75)
    widths = (1.0, 0.5, 0.2, 0.1, 0.05)
    adversaries = [
        sp.Restarts(sp.Direct("sum", replace(pgd, steps=50, decreasing=True), sp.margin), 2),
        sp.Restarts(Annealed(sp.Direct("count", pgd), tuple(map(SmoothError, widths))), 2),
    ]
    defense = BalancedDefense(Balanced().eval())
    outcomes = sp.evaluate(defense, adversaries, x, y, threat=sp.Threat(sp.Linf(0.15)))
    total, counted = (N * outcomes.accuracy()[:, 0]).round().long().tolist()
    assert counted <= total - 2


def test_stages_need_pgd_and_a_loss() -> None:
    for direct, losses in (
        (sp.Direct("a", sp.APGD(3)), (SmoothError(),)),
        (sp.Direct("a", PGD(3)), ()),
    ):
        with pytest.raises(ValueError, match="Annealed needs PGD"):
            Annealed(direct, losses)


@pytest.mark.slow
def test_an_audit_of_a_balanced_batch_counts_errors() -> None:
    x, y = sp.load_data("digits", n=N)
    # The query limit leaves out the search over single rows, which is tested below.
    threat = sp.Threat(sp.Linf(0.25), queries=500)
    result = sp.audit(Balanced().eval(), x, y, threat=threat)
    rows = {row.name: row.robust_accuracy for row in result.rows}
    assert min(rows["pgd-clipped x3"], rows["pgd-errors x3"]) == min(rows.values())
    assert result.robust_accuracy <= rows["apgd-ce"] - 2 / N


CAPACITY = 3
ROWS = 8


class Capacity(sp.Defense):
    """A bright row is misclassified, unless more than three rows of the batch are bright.

    So at most three rows can be misclassified together, and no gradient shows which.
    """

    coupled = True

    def trace(self, x: Tensor, ctx: sp.Context) -> sp.Trace:
        bright = x.flatten(1).mean(1) > 0.5
        served = bright & (bright.sum() <= CAPACITY)
        wrong = served.to(x) + 0 * x.flatten(1).sum(1)
        return sp.Trace((sp.View("final", torch.stack([1 - wrong, wrong], 1)),))


def with_bright_rows(*rows: int) -> FixedPoints:
    points = torch.full((ROWS, 1, 2, 2), 0.4)
    points[list(rows)] = 0.55
    return FixedPoints(f"bright {rows}", points)


def test_exchanged_rows_fill_the_capacity_that_whole_batches_exceed_or_leave() -> None:
    x = torch.full((ROWS, 1, 2, 2), 0.45)
    y = torch.zeros(ROWS, dtype=torch.long)
    starts = (with_bright_rows(0, 1), with_bright_rows(2, 4), with_bright_rows(*range(ROWS)))
    few = sp.Direct("few", PGD(2, 0.01))
    adversaries = [Cascade("starts", starts), RowSearch("rows", few, starts, 24, 2)]
    threat = sp.Threat(sp.Linf(0.1))
    outcomes = sp.evaluate(Capacity(), adversaries, x, y, threat=threat)
    errors = (ROWS * (1 - outcomes.accuracy()[:, 0])).round().long().tolist()
    assert errors == [2, CAPACITY]


class Crowd(sp.Defense):
    """The lead of a row falls with its own brightness and rises with that of the batch.

    If k of n rows are brighter by 0.1 and the others are not, the lead of these rows is
    0.05 - 0.1 + 0.09 k / n: negative for k < 0.56 n.
    """

    coupled = True

    def trace(self, x: Tensor, ctx: sp.Context) -> sp.Trace:
        own = x.flatten(1).mean(1) - 0.5
        lead = 0.05 - (own - 0.9 * own.mean())
        return sp.Trace((sp.View("final", torch.stack([lead, -lead], 1)),))


def test_few_rows_move_where_a_step_of_all_rows_changes_nothing() -> None:
    """Of 8 rows four can be broken; if all move, none is."""
    x = torch.full((ROWS, 1, 2, 2), 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    direct = sp.Direct("few", PGD(5, 0.1, random_start=False))
    threat = sp.Threat(sp.Linf(0.1))
    search = RowSearch("rows", direct, (FixedPoints(),), 0, 4)
    outcomes = sp.evaluate(Crowd(), [direct, search], x, y, threat=threat)
    errors = (ROWS * (1 - outcomes.accuracy()[:, 0])).round().long().tolist()
    assert errors == [0, 4]


def test_a_search_over_rows_needs_pgd_and_a_start() -> None:
    for direct, starts in (
        (sp.Direct("a", sp.APGD(3)), (sp.Direct("b", PGD(3)),)),
        (sp.Direct("a", PGD(3)), ()),
    ):
        with pytest.raises(ValueError, match="RowSearch needs PGD"):
            RowSearch("rows", direct, starts, 1, 1)


def facts(*, times: float) -> TargetFacts:
    """One prediction takes `times` the operations of one of the static net."""
    evidence = f"{times} times the operations"
    return TargetFacts(Traits((present(TraitName.EXPENSIVE, evidence, amount=times),)))


class Costly(Crowd):
    """A defense around a static net; the facts say how costly it is."""

    static = nn.Flatten()


def planned(defense: sp.Defense, times: float) -> list[str]:
    threat = sp.Threat(sp.Linf(0.1))
    return [choice.name for choice in compose(defense, threat, "standard", facts(times=times))]


def test_rows_of_a_batch_are_attacked_one_by_one_and_together() -> None:
    names = planned(Costly(), 2.0)
    assert names[0] == "apgd-ce by row, 5 rounds"
    assert {"apgd-ce", "rows", "square"} <= set(names)


def test_a_costly_batch_is_attacked_by_rows_and_by_transfer_only() -> None:
    first, *others = planned(Costly(), 100.0)
    assert first == "apgd-ce by row, 5 rounds"
    assert others
    assert all(name.startswith("transfer ") for name in others)


def test_other_targets_have_no_attacks_by_row() -> None:
    independent = Costly()
    independent.coupled = False
    randomized = Costly()
    randomized.random = True
    adapting = Costly()
    adapting.memory = "batch"
    for defense in (independent, randomized, adapting):
        names = planned(defense, 100.0)
        assert not any("by row" in name for name in names)
        assert "square" in names
    assert planned(independent, 100.0) == planned(independent, 2.0)


def test_named_steps_are_passed_by_the_identity_first_and_exactly_once() -> None:
    traits = Traits((present(TraitName.SITES, "one step", places=("purify",)),))
    threat = sp.Threat(sp.Linf(0.1))
    rounds = compose(Costly(), threat, "standard", TargetFacts(traits))[0].adversary
    assert isinstance(rounds, RowRounds)
    rules = [dict(one.rules) for one in rounds.attacks]
    assert rules.count({}) == 1
    assert rules.count({"purify": sp.BPDA()}) == len(rules) - 1
    assert rules[2] == {}


def test_one_attack_follows_all_views_and_another_one_the_last_alone() -> None:
    views = present(TraitName.VIEWS_DISAGREE, "two views", places=("a",), amount=0.5)
    facts = TargetFacts(Traits((views,)))
    plan = compose(Costly(), sp.Threat(sp.Linf(0.1)), "standard", facts)
    rounds = [one.adversary for one in plan if isinstance(one.adversary, RowRounds)]
    aims = [one.direct.aim for one in rounds]
    assert aims == [last_value_summed_gradient, last_view]
    for one in rounds:
        assert one.attacks[2:] == tuple(one.direct.scaled(times) for times in (2, 4, 8))
    assert rounds[1].direct.name == "apgd-last-view"


def test_a_wrong_decoupled_defense_is_an_error() -> None:
    class Wrong(Crowd):
        def decouple(self, x: Tensor) -> sp.Defense:
            return sp.Plain(nn.Flatten())

    x = torch.full((ROWS, 1, 2, 2), 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(TargetError, match="returns from `decouple`"):
        sp.audit(Wrong(), x, y, threat=sp.Linf(0.1), budget="quick")


class Shifted(Crowd):
    """Its decoupled form adds an error to the logits."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def decouple(self, x: Tensor) -> sp.Defense:
        logits = self.respond(x, sp.Context.seeded(0, len(x)))
        return sp.Plain(lambda _: logits + self.error * torch.eye(len(x), 2))


@pytest.mark.parametrize(("error", "accepted"), [(1e-3, True), (0.5, False)])
def test_a_decoupled_defense_may_differ_by_amplified_rounding(error: float, accepted: bool) -> None:
    x = torch.rand(ROWS, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    context = sp.Context.seeded(0, ROWS)
    defense = Shifted(error)
    answer = defense.respond(x, context)
    target = SimpleNamespace(defense=defense, x=x, answer=answer, keys=lambda: context.keys)
    if accepted:
        _check_decoupled(target)  # type: ignore[arg-type]
    else:
        with pytest.raises(TargetError, match="returns from `decouple`"):
            _check_decoupled(target)  # type: ignore[arg-type]


def test_a_remedy_continues_the_last_rounds_from_the_worst_points() -> None:
    first = sp.Direct("pgd", PGD(2), stop_at_success=True)
    rounds = RowRounds(first, (first.scaled(2), first.scaled(4)))
    points = torch.rand(ROWS, 1, 2, 2)
    planner = SimpleNamespace(
        rounds=rounds, evidence=SimpleNamespace(points=points), on_answer=lambda one: one
    )
    largest, *_ = continued_rows(cast(Planner, planner))
    found = largest.adversary
    assert isinstance(found, RowRounds)
    assert found.start is points
    assert [one.attack for one in found.attacks] == [PGD(16), PGD(32)]


def test_a_remedy_continues_the_stronger_of_two_attacks_by_row() -> None:
    attacks = [RowRounds(sp.Direct(name, PGD(2), stop_at_success=True)) for name in ("a", "b")]
    runs = [SimpleNamespace(adversary=one, remedy=False) for one in attacks]
    accuracies = {"a": 0.2, "b": 0.1}

    def row(run: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(robust_accuracy=accuracies[run.adversary.direct.name])

    planner = SimpleNamespace(evidence=SimpleNamespace(runs=runs, row=row))
    assert Planner.rounds.fget(planner) is attacks[1]  # type: ignore[attr-defined]
    accuracies["b"] = 0.2
    assert Planner.rounds.fget(planner) is attacks[0]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_audit_of_coupled_rows_attacks_them_one_by_one() -> None:
    """Each row is broken at another step: whole batches have one error, rows have all."""
    x = torch.full((ROWS, 1, 2, 2), 0.5)
    y = torch.zeros(ROWS, dtype=torch.long)
    result = sp.audit(Passing(), x, y, threat=sp.Linf(0.1), budget="standard", allow_unusual=True)
    rows = {row.name: row.robust_accuracy for row in result.rows}
    assert rows["apgd-ce by row, 5 rounds"] < rows["apgd-ce"]
