"""Every item of the checklist passes on one defense and fails on another."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import pytest
import torch
from tests.audits.linear_defenses import (
    APGD,
    BPDA,
    CLEANED,
    EOT,
    IDENTITY,
    NET,
    REVERSED,
    ROUNDED,
    SHORT,
    SQUARE,
    THREAT,
    TRANSFER,
    WEAKER,
    WRONG_BPDA,
    Coupled,
    Linear,
    NoisyGradient,
    Purified,
    X,
    Y,
    collect_evidence,
)

import saddlepoint as sp
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.static_net import PredictionCost, cost_of
from saddlepoint.audits.verdict import ItemName, State, enough_tested
from saddlepoint.evaluation import CleanCopies, FixedPoint, GreedyModelSpace, OnExamples, Threat

PASS = State.PASS
FAIL = State.FAIL
NOT_RUN = State.NOT_RUN
NOT_APPLICABLE = State.NOT_APPLICABLE

LITTLE_NOISE = NoisyGradient(0.1)
MUCH_NOISE = NoisyGradient(1000.0)
FIVE_CALLS = Purified(calls=5)
COPIES_TRANSFER = sp.Transfer(CleanCopies(APGD), sp.Plain(NET))
OTHER_NET_TRANSFER = sp.Transfer(APGD, sp.Plain(Linear()))


def CALLABLE(x):  # noqa: N802
    return NET(x)


CASES = [
    (ItemName.TESTED, PASS, NET, (APGD,)),
    (ItemName.TRANSFER, PASS, IDENTITY, (APGD, TRANSFER)),
    (ItemName.TRANSFER, FAIL, IDENTITY, (APGD, COPIES_TRANSFER)),
    (ItemName.TRANSFER, NOT_RUN, IDENTITY, (APGD, OTHER_NET_TRANSFER)),
    (ItemName.TRANSFER, NOT_APPLICABLE, NET, (APGD,)),
    (ItemName.BLACK_BOX, PASS, IDENTITY, (SQUARE,)),
    (ItemName.BLACK_BOX, PASS, NET, (SQUARE,)),
    (ItemName.BLACK_BOX, FAIL, WEAKER, (SQUARE,)),
    (ItemName.BLACK_BOX, NOT_RUN, IDENTITY, (APGD,)),
    (ItemName.WHITE_BOX, PASS, IDENTITY, (APGD,)),
    (ItemName.WHITE_BOX, FAIL, ROUNDED, (APGD,)),
    (ItemName.WHITE_BOX, NOT_RUN, IDENTITY, (SQUARE,)),
    (ItemName.WHITE_BOX, NOT_RUN, CALLABLE, (SQUARE,)),
    (ItemName.BACKWARD, PASS, ROUNDED, (BPDA, SQUARE)),
    (ItemName.BACKWARD, FAIL, ROUNDED, (WRONG_BPDA, SQUARE)),
    (ItemName.BACKWARD, NOT_RUN, ROUNDED, (APGD,)),
    (ItemName.BACKWARD, NOT_APPLICABLE, IDENTITY, (APGD,)),
    (ItemName.RANDOMNESS, PASS, LITTLE_NOISE, (EOT,)),
    (ItemName.RANDOMNESS, FAIL, MUCH_NOISE, (EOT,)),
    (ItemName.RANDOMNESS, NOT_RUN, LITTLE_NOISE, (APGD,)),
    (ItemName.RANDOMNESS, NOT_APPLICABLE, IDENTITY, (APGD,)),
    (ItemName.ADAPTIVE, PASS, IDENTITY, (APGD, TRANSFER)),
    (ItemName.ADAPTIVE, FAIL, REVERSED, (APGD, TRANSFER)),
    (ItemName.ADAPTIVE, NOT_RUN, ROUNDED, (APGD, TRANSFER)),
    (ItemName.ADAPTIVE, NOT_RUN, LITTLE_NOISE, (APGD, TRANSFER)),
    (ItemName.ADAPTIVE, NOT_APPLICABLE, NET, (APGD,)),
    (ItemName.SINGLE_STEP, PASS, IDENTITY, (APGD,)),
    (ItemName.SINGLE_STEP, FAIL, IDENTITY, (SHORT,)),
    (ItemName.SINGLE_STEP, NOT_RUN, IDENTITY, (SQUARE,)),
    (ItemName.CONVERGED, PASS, IDENTITY, (APGD,)),
    (ItemName.CONVERGED, FAIL, IDENTITY, (SHORT,)),
    (ItemName.CONVERGED, NOT_RUN, IDENTITY, (SQUARE,)),
    (ItemName.UNBOUNDED, PASS, IDENTITY, (APGD,)),
    (ItemName.UNBOUNDED, FAIL, ROUNDED, (APGD,)),
    (ItemName.MASKED, PASS, IDENTITY, (APGD, SQUARE)),
    (ItemName.MASKED, FAIL, ROUNDED, (APGD, SQUARE)),
    (ItemName.MASKED, NOT_RUN, IDENTITY, (APGD,)),
    (ItemName.NOT_WEAKER, PASS, IDENTITY, (APGD, TRANSFER)),
    (ItemName.NOT_WEAKER, FAIL, WEAKER, (APGD, TRANSFER)),
    (ItemName.NOT_WEAKER, NOT_RUN, IDENTITY, (APGD,)),
    (ItemName.NOT_WEAKER, NOT_APPLICABLE, NET, (APGD,)),
    (ItemName.COST, PASS, CLEANED, (BPDA, TRANSFER)),
    (ItemName.COST, FAIL, FIVE_CALLS, (APGD, TRANSFER)),
    (ItemName.COST, NOT_APPLICABLE, NET, (APGD,)),
]


def item_in(evidence, name):
    return next(item for item in checklist(evidence) if item.name is name)


@pytest.mark.parametrize(
    ("name", "state", "target", "adversaries"),
    CASES,
    ids=[f"{name}-{state}-{k}" for k, (name, state, *_) in enumerate(CASES)],
)
def test_the_state_of_an_item_follows_from_the_attacks(
    evidence_of, name, state, target, adversaries
):
    item = item_in(evidence_of(target, adversaries), name)
    assert item.state is state, item.evidence
    assert item.evidence


def test_every_item_has_a_case_that_passes_and_one_that_fails():
    tried = {(name, state) for name, state, *_ in CASES}
    tried |= {(ItemName.CLEAN, PASS), (ItemName.CLEAN, FAIL)}  # see the test below
    tried |= {(enough_tested(n, 0.5, 0.1).name, enough_tested(n, 0.5, 0.1).state) for n in (29, 30)}
    assert {(name, state) for name in ItemName for state in (PASS, FAIL)} <= tried


def test_the_checklist_has_every_item_once(evidence_of):
    assert [item.name for item in checklist(evidence_of(IDENTITY, (APGD,)))] == list(ItemName)


@pytest.mark.parametrize(
    ("target", "state"), [(Coupled(), PASS), (Coupled(lambda x: 2 * x.detach() - x), FAIL)]
)
def test_an_attack_that_raises_the_accuracy_fails_the_clean_item(target, state):
    """Every fourth label is wrong. Rows are coupled, so that misclassified images are attacked as
    well: steps along the opposite gradient make them correct."""
    y = torch.where(torch.arange(len(Y)) % 4 == 0, 1 - Y, Y)
    assert item_in(collect_evidence(target, [APGD], y=y), ItemName.CLEAN).state is state


def test_items_about_gradients_do_not_apply_if_the_threat_model_grants_none():
    threat = sp.Threat(THREAT, access="score")
    items = {i.name: i.state for i in checklist(collect_evidence(NET, [SQUARE], threat))}
    about_gradients = (
        ItemName.WHITE_BOX,
        ItemName.BACKWARD,
        ItemName.SINGLE_STEP,
        ItemName.CONVERGED,
        ItemName.UNBOUNDED,
        ItemName.MASKED,
    )
    assert {items[name] for name in about_gradients} == {NOT_APPLICABLE}
    assert items[ItemName.BLACK_BOX] is PASS


def test_the_unbounded_attack_does_not_apply_if_the_threat_model_allows_any_image():
    evidence = collect_evidence(NET, [APGD], sp.Linf(0.5))
    assert item_in(evidence, ItemName.UNBOUNDED).state is NOT_APPLICABLE


def test_attacks_are_recognized_by_their_parts_not_by_their_names():
    misnamed = sp.Direct("square with eot and bpda", sp.APGD(5))
    evidence = collect_evidence(IDENTITY, [misnamed])
    assert item_in(evidence, ItemName.BLACK_BOX).state is NOT_RUN
    direct = sp.Direct("x", sp.APGD(5), rules={"purify": sp.BPDA()})
    nested = sp.Restarts(sp.MultiTarget(direct, 1, targeted_margin), 2)
    evidence = collect_evidence(ROUNDED, [nested])
    assert item_in(evidence, ItemName.BACKWARD).state is PASS


@dataclass(frozen=True)
class MyBPDA(sp.BPDA):
    """A rule of a user."""


@dataclass(frozen=True)
class MyEoT(sp.EoT):
    """An estimator of a user."""


@dataclass(frozen=True)
class MyTransfer(sp.Transfer):
    """A transfer attack of a user."""


@dataclass(frozen=True)
class MySquare(sp.Square):
    """A query search of a user."""


@dataclass(frozen=True)
class MyDirect(sp.Direct):
    """An adversary of a user."""


SUBCLASSES = [
    (ItemName.BACKWARD, ROUNDED, sp.Direct("x", sp.APGD(20), rules={"purify": MyBPDA()})),
    (ItemName.RANDOMNESS, LITTLE_NOISE, sp.Direct("x", sp.APGD(10), estimator=MyEoT(4))),
    (ItemName.TRANSFER, IDENTITY, MyTransfer(APGD, sp.Plain(NET))),
    (ItemName.NOT_WEAKER, IDENTITY, MyTransfer(APGD, sp.Plain(NET))),
    (ItemName.BLACK_BOX, IDENTITY, sp.Direct("x", MySquare(200))),
    (ItemName.WHITE_BOX, IDENTITY, MyDirect("x", sp.APGD(20))),
    (ItemName.CONVERGED, IDENTITY, MyDirect("x", sp.APGD(20))),
]


@pytest.mark.parametrize(
    ("name", "target", "adversary"), SUBCLASSES, ids=[str(case[0]) for case in SUBCLASSES]
)
def test_a_subclass_counts_like_its_parent(name, target, adversary):
    item = item_in(collect_evidence(target, [adversary]), name)
    assert item.state is PASS, item.evidence


class Adapting(Purified):
    """Adapts to the batch; the adapted model is the same."""

    memory = "batch"

    def adapt(self, x, ctx):
        return self


@dataclass(frozen=True)
class MyModelSpace(GreedyModelSpace):
    """An attack on adapted models of a user."""


@dataclass(frozen=True)
class MyFixedPoint(FixedPoint):
    """An attack on the last adapted model of a user."""


@pytest.mark.parametrize("kind", [MyModelSpace, MyFixedPoint])
def test_a_subclass_of_an_attack_on_adapted_models_anticipates_adaptation(kind):
    evidence = collect_evidence(Adapting(), [kind("x", sp.Direct("pgd", sp.PGD(2)), rounds=1)])
    assert item_in(evidence, ItemName.ADAPTIVE).state is PASS
    assert evidence.plan.findings == ()


def test_the_cost_is_not_judged_if_attacks_break_too_few_images_of_the_static_net():
    """Between the third and the fourth distance to the boundary three images are broken."""
    distances = (((X - 0.5) @ NET.w).abs() / NET.w.abs().sum()).sort().values
    radius = sp.Linf(float(distances[2:4].mean().detach()))
    evidence = collect_evidence(FIVE_CALLS, [APGD, TRANSFER], radius)
    item = item_in(evidence, ItemName.COST)
    assert item.state is NOT_RUN
    assert "break only 3 images" in item.evidence


def test_the_cost_counts_calls_of_the_static_net(evidence_of):
    cost = evidence_of(FIVE_CALLS, (APGD, TRANSFER)).diagnoses.cost
    assert cost.calls == 5
    assert cost.graded == 0


def test_the_cost_is_cpu_time_so_that_waiting_is_free():
    class Waiting(Purified):
        def trace(self, x, ctx):
            time.sleep(0.05)
            return super().trace(x, ctx)

    job = Job(Waiting(), X, Y, Threat(THREAT), seed=0, batch_size=128)
    cost = cost_of(PredictionCost(torch.arange(len(X))).compute(job))
    assert cost.seconds < 0.05


def test_two_gradients_that_are_not_finite_do_not_agree():
    class Undefined(NoisyGradient):
        def trace(self, x, ctx):
            # The derivative of a square root at zero is infinite; times zero it is NaN.
            return super().trace(x + (x - x).abs().sqrt(), ctx)

    evidence = collect_evidence(Undefined(0.1), [EOT])
    assert evidence.diagnoses.gradient_cosine == 0
    assert item_in(evidence, ItemName.RANDOMNESS).state is FAIL


def test_a_paired_test_of_coupled_images_says_that_it_assumes_independence():
    text = "as if images were independent"
    transfer = [sp.Transfer(SHORT, sp.Plain(NET))]
    coupled = item_in(collect_evidence(Coupled(), transfer), ItemName.NOT_WEAKER)
    assert text in coupled.evidence
    independent = item_in(collect_evidence(IDENTITY, transfer), ItemName.NOT_WEAKER)
    assert text not in independent.evidence


def test_an_adaptive_remedy_is_not_compared_on_images_that_it_did_not_attack():
    # Transferred points break most images first; the remedy attacks two of them.
    remedy = OnExamples("bpda", BPDA, ids=(0, 1))
    item = item_in(collect_evidence(ROUNDED, [APGD, TRANSFER, remedy]), ItemName.ADAPTIVE)
    assert item.state is NOT_RUN
    assert "of 2 images that earlier attacks had left, and did not run on the others" in (
        item.evidence
    )
    assert "bpda leaves" not in item.evidence


def test_remedies_beside_an_attack_on_all_images_say_how_many_images_they_attacked():
    remedy = OnExamples("more", BPDA, ids=(0, 1, 2))
    item = item_in(collect_evidence(ROUNDED, [BPDA, SQUARE, remedy]), ItemName.BACKWARD)
    assert item.state is PASS
    assert re.search(r"bpda leaves .* %, with more on 3 remaining images .* %\.", item.evidence)
