"""The six stages: their order, and that the last one runs nothing."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
import torch
from tests.audits.linear_defenses import (
    APGD,
    NET,
    SQUARE,
    THREAT,
    TRANSFER,
    Purified,
    X,
    Y,
    plan_for,
)

import saddlepoint as sp
from saddlepoint.attacks.best import BestSoFar
from saddlepoint.audits import AuditRequest, collect, prepare
from saddlepoint.audits.cells import Recheck
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.pipeline import InProcess, run
from saddlepoint.audits.verdict import ItemName, State
from saddlepoint.evaluation import Threat

# Steps that cover a part of the radius, so that the audit calls for a remedy.
SLOW = sp.Direct("slow", sp.PGD(4, 0.001, random_start=False))


class Recording(InProcess):
    """Computes in this process and records the kinds of cells in order."""

    def __init__(self):
        self.kinds = []
        self.counts = []

    def attacks(self, plan, cells):
        self._record("attack", len(cells))
        return super().attacks(plan, cells)

    def measurements(self, plan, cells):
        rechecks = [isinstance(cell, Recheck) for cell in cells]
        assert all(rechecks) or not any(rechecks), "re-evaluations are a stage of their own"
        self._record("re-evaluation" if all(rechecks) else "diagnostic", len(cells))
        return super().measurements(plan, cells)

    def _record(self, kind, count):
        self.kinds.append(kind)
        self.counts.append(count)


ROUND = ["attack", "re-evaluation", "diagnostic"]


@pytest.mark.parametrize(("passes", "rounds"), [(0, 1), (100_000, 2)], ids=["no remedy", "remedy"])
def test_the_stages_run_in_order_and_remedies_lead_back_to_attacks_once(passes, rounds):
    plan = replace(plan_for(NET, [SLOW], batch_size=40), remedy_passes=passes)
    execution = Recording()
    evidence = collect(plan, execution)
    assert execution.kinds == ROUND * rounds
    remedies = len(evidence.plan.adversaries) - len(plan.adversaries)
    assert (remedies > 0) is (rounds == 2)
    # Two groups of 40 images; the clean images are the first adversary.
    assert execution.counts[0] == 2 * 2
    assert execution.counts[1] == 2
    assert execution.counts[-3] == 2 * (2 + remedies)


def test_a_remedy_does_not_change_the_outcomes_of_the_first_round():
    plan = plan_for(NET, [SLOW])
    first = collect(plan, InProcess()).groups[0].outcomes
    both = collect(replace(plan, remedy_passes=100_000), InProcess()).groups[0].outcomes
    assert len(both.episodes) > len(first.episodes)
    for before, after in zip(first.episodes, both.episodes, strict=False):
        for name in ("correct", "answered", "margin", "size", "forward", "backward"):
            assert torch.equal(getattr(before, name), getattr(after, name))


class Breakable(Purified):
    """A defense that can be made to fail."""

    broken = False

    def trace(self, x, ctx):
        if self.broken:
            raise AssertionError("the target was run")
        return super().trace(x, ctx)


def test_the_last_stage_runs_nothing_and_can_be_repeated(monkeypatch):
    defense = Breakable()
    evidence = collect(plan_for(defense, [APGD, TRANSFER, SQUARE]), InProcess())
    defense.broken = True
    monkeypatch.setattr(NET, "forward", None)
    first = conclude(evidence)
    again = conclude(evidence)
    assert first.record() == again.record()
    assert torch.equal(first.worst_points, again.worst_points)
    assert torch.equal(first.correct, again.correct)
    assert first.checklist
    assert first.compared.static is not None


def test_the_last_stage_does_not_use_earlier_results():
    """A second object with the same evidence gives the same result, without cached values."""
    evidence = collect(plan_for(NET, [APGD, SQUARE]), InProcess())
    first = conclude(evidence)
    fresh = replace(evidence)
    assert not [name for name in vars(fresh) if name not in {f.name for f in fields(fresh)}]
    assert conclude(fresh).record() == first.record()


def test_run_is_all_stages():
    request = AuditRequest(NET, X, Y, Threat(THREAT), adversaries=(APGD,))
    whole = run(request, InProcess()).record()
    parts = conclude(collect(prepare(request), InProcess())).record()
    for row in (*whole["rows"], *parts["rows"]):
        del row["seconds"]
    assert whole == parts


@dataclass(frozen=True)
class RandomSearch:
    """The best of `calls` points drawn uniformly from the set; it subclasses nothing."""

    calls: int = 50
    needs: ClassVar = "score"

    def __call__(self, oracle, center, space, keys):
        best = BestSoFar(center, oracle.coupled)
        for k in range(self.calls):
            x = space.sample(center, keys.fold_in(k))
            best.update(x, oracle.score(x))
        return best.result


@dataclass(frozen=True)
class SignStep(sp.Attack):
    """One step of the radius along the signs of the gradient."""

    needs: ClassVar = "gradient"
    calls: ClassVar = 2

    def __call__(self, oracle, center, space, keys):
        best = BestSoFar(center, oracle.coupled)
        step = oracle.gradient(center).grad.sign() * space.radius
        x = space.project(center + step, center)
        best.update(x, oracle.score(x))
        return best.result


def robust_accuracy_in_closed_form():
    score = ((X - 0.5) @ NET.w.detach()) * (1 - 2 * Y)
    return float((score > THREAT.radius * NET.w.detach().abs().sum()).double().mean())


def test_an_attack_that_subclasses_nothing_can_be_audited():
    adversary = sp.Direct("random search", RandomSearch())
    result = sp.audit(NET, X, Y, threat=THREAT, adversaries=[adversary])
    (row,) = result.rows
    assert row.name == "random search"
    assert (row.forward, row.backward) == (51, 0)  # one pass decides which images are attacked
    assert robust_accuracy_in_closed_form() < result.robust_accuracy < result.clean_accuracy
    states = {item.name: item.state for item in result.checklist}
    assert states[ItemName.BLACK_BOX] is State.PASS
    assert states[ItemName.WHITE_BOX] is State.NOT_RUN


def test_an_attack_that_subclasses_attack_can_be_audited():
    adversary = sp.Direct("sign step", SignStep())
    result = sp.audit(NET, X, Y, threat=THREAT, adversaries=[adversary, SQUARE])
    assert [row.name for row in result.rows] == ["sign step", "square"]
    assert result.robust_accuracy == pytest.approx(robust_accuracy_in_closed_form(), abs=1e-12)
    states = {item.name: item.state for item in result.checklist}
    assert states[ItemName.WHITE_BOX] is State.PASS
    assert states[ItemName.CONVERGED] is State.PASS


class WeakPoints(InProcess):
    """Remembers the points of all attack cells without keeping them alive."""

    def __init__(self):
        self.points = []

    def attacks(self, plan, cells):
        found = super().attacks(plan, cells)
        self.points += [weakref.ref(episode.points) for episode in found]
        return found


def test_evidence_keeps_the_worst_points_only():
    """The points of 30 attacks on 10,000 images would not fit into memory."""
    execution = WeakPoints()
    evidence = collect(plan_for(NET, [APGD, SQUARE]), execution)
    gc.collect()
    assert len(execution.points) >= 3
    assert [points for points in execution.points if points() is not None] == []
    assert len(evidence.points) == len(evidence.plan.job.x)
