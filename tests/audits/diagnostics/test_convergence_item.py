"""The item "more steps and restarts change nothing" counts what attacks missed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.linear_defenses import (
    IDENTITY,
    NET,
    RADIUS,
    THREAT,
    Coupled,
    Purified,
    X,
    Y,
    plan_for,
)

import saddlepoint as sp
from saddlepoint.audits import collect
from saddlepoint.audits.diagnostics.attack_trials import longer_attack
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.values import Compared
from saddlepoint.audits.pipeline import InProcess
from saddlepoint.audits.verdict import ItemName, State
from saddlepoint.evaluation import Restarts, RowRounds, SortedByLabel, Threat


@pytest.fixture(scope="module")
def evidence():
    """A linear net under an attack with a radius that breaks few of its images."""
    adversary = sp.Direct("pgd", sp.PGD(2), loss=sp.margin)
    return collect(plan_for(IDENTITY, (adversary,), THREAT, X, Y), InProcess())


def state_after(evidence, broken, sampled):
    """The state of the item if a longer attack breaks some of a sample of unbroken images."""
    first = torch.ones(sampled, dtype=torch.float64)
    second = (torch.arange(sampled) >= broken).double()
    diagnoses = replace(evidence.diagnoses, longer=Compared(first, second))
    items = {item.name: item for item in checklist(replace(evidence, diagnoses=diagnoses))}
    return items[ItemName.CONVERGED].state


@pytest.mark.parametrize(
    ("broken", "sampled", "state"),
    [(0, 8, State.PASS), (1, 8, State.FAIL), (1, 60, State.FAIL), (2, 200, State.FAIL)],
)
def test_one_image_in_a_sample_stands_for_several_in_all(evidence, broken, sampled, state):
    assert float(evidence.robust.mean()) > 0.7
    assert state_after(evidence, broken, sampled) is state


def test_less_than_one_point_of_accuracy_may_be_missed(evidence):
    assert state_after(evidence, 1, 101) is State.PASS


BATCH = 8
ATTACK = sp.Direct("apgd", sp.APGD(20), loss=sp.margin)
REACH = 2 * RADIUS * float(NET.w.detach().abs().sum())  # the largest change of a lead


def coupled_evidence(x, y, attack):
    """A defense whose rows are attacked together, in batches of 8."""
    plan = plan_for(Coupled(), (attack,), THREAT, x, y, batch_size=BATCH)
    return collect(plan, InProcess())


def by_lead():
    """Images in the order of their leads, and those leads."""
    outputs = NET(X).detach()
    leads = (outputs[:, 0] - outputs[:, 1]).abs()
    order = leads.argsort()
    return X[order], Y[order], leads[order]


def test_the_batch_with_the_most_unbroken_images_is_checked():
    x, y, leads = by_lead()
    broken = int((leads < REACH).sum())
    first = (broken // BATCH) * BATCH  # the first image of a batch that is broken in part
    parts = [torch.arange(BATCH), torch.arange(first, first + BATCH)]
    rows = torch.cat([*parts, torch.arange(len(x) - BATCH, len(x)), torch.arange(BATCH)])
    evidence = coupled_evidence(x[rows], y[rows], ATTACK)
    assert 0 < int(evidence.robust[BATCH : 2 * BATCH].sum()) < BATCH
    assert torch.equal(evidence.sample(32), torch.arange(BATCH))
    unbroken = evidence.robust >= 0.5
    assert torch.equal(evidence.sample(32, unbroken), torch.arange(2 * BATCH, 3 * BATCH))
    assert int(evidence.diagnoses.longer.first.sum()) == BATCH
    assert not len(evidence.sample(32, torch.zeros_like(unbroken)))


def test_of_equal_batches_the_one_closest_to_an_error_is_checked():
    x, y, _ = by_lead()
    rows = torch.cat([torch.arange(len(x) - BATCH, len(x)), torch.arange(40, 40 + BATCH)])
    evidence = coupled_evidence(x[rows], y[rows], sp.Direct("pgd", sp.PGD(1), loss=sp.margin))
    unbroken = evidence.robust >= 0.5
    assert unbroken.all()
    assert torch.equal(evidence.sample(32, unbroken), torch.arange(BATCH, 2 * BATCH))


def test_images_that_were_broken_before_are_not_counted():
    x, y, leads = by_lead()
    first = int((leads < REACH).sum()) // BATCH * BATCH
    rows = torch.arange(first, first + BATCH)
    evidence = coupled_evidence(x[rows], y[rows], ATTACK)
    left = int(evidence.robust.sum())
    assert 0 < left < BATCH
    item = next(one for one in checklist(evidence) if one.name is ItemName.CONVERGED)
    assert f"break none of {left} correctly classified image" in item.evidence


def test_rounds_that_start_anew_are_not_repeated():
    direct = sp.Direct("apgd", sp.APGD(4), stop_at_success=True)
    rounds = longer_attack(RowRounds(direct, (direct,)), 0)
    assert not isinstance(rounds.adversary, Restarts)
    assert [one.attack.steps for one in rounds.adversary.attacks] == [8, 8]
    complete = replace(direct, stop_at_success=False)
    one_round = RowRounds(complete, (complete,))  # without a stop at success there is one round
    for single in (direct, one_round):
        repeated = longer_attack(single, 0).adversary
        assert isinstance(repeated, Restarts)
        assert repeated.times == 2


class Stream(Purified):
    """Declares that outputs depend on earlier batches."""

    memory = "stream"


def stream_evidence(x, y, attack=ATTACK, batch_size=BATCH, threat=THREAT):
    settings = {"batch_size": batch_size, "allow_unusual": True}
    return collect(plan_for(Stream(), (attack,), threat, x, y, **settings), InProcess())


def converged(evidence):
    return next(one for one in checklist(evidence) if one.name is ItemName.CONVERGED)


def test_of_a_stream_only_batches_with_unbroken_images_are_compared():
    x, y, leads = by_lead()
    broken = int((leads < REACH).sum())
    evidence = stream_evidence(x, y)
    left = BATCH - broken % BATCH  # unbroken images of the first batch that has any
    assert broken > BATCH
    compared = evidence.diagnoses.longer
    assert compared.first[:BATCH].tolist() == [0.0] * (BATCH - left) + [1.0] * left
    assert int(compared.first.sum()) >= evidence.sample(32, evidence.robust >= 0.5).numel() - broken


def test_a_stream_of_single_images_is_checked_on_several_of_them():
    x, y, leads = by_lead()
    rows = torch.cat([torch.arange(6), torch.arange(len(x) - 10, len(x))])
    evidence = stream_evidence(x[rows], y[rows], batch_size=1)
    assert (leads[:6] < REACH).all()
    assert evidence.diagnoses.longer.first.tolist() == [1.0] * 10


def test_an_image_of_a_stream_that_a_longer_attack_breaks_is_noticed():
    x, y, leads = by_lead()
    first = int((leads < REACH).sum()) // BATCH * BATCH
    weak = sp.Direct("pgd", sp.PGD(1, RADIUS / 20, random_start=False), loss=sp.margin)
    evidence = stream_evidence(x[: first + BATCH], y[: first + BATCH], weak)
    assert evidence.diagnoses.longer.first.sum() > evidence.diagnoses.longer.second.sum()
    assert converged(evidence).state is State.FAIL


def test_steps_are_recorded_for_the_first_batch_of_a_stream_that_is_not_wrong_anyway():
    y = Y[:28].clone()
    y[: 2 * BATCH] = 1 - y[: 2 * BATCH]
    evidence = stream_evidence(X[:28], y)
    watched = evidence.diagnoses.watched
    assert watched.value.shape == (21, BATCH)
    assert torch.equal(watched.robust, evidence.robust[2 * BATCH : 3 * BATCH] >= 0.5)
    assert watched.robust.any()


def test_steps_are_recorded_for_the_best_batch_of_a_window_that_is_rearranged():
    threat = Threat(THREAT, order=SortedByLabel(2 * BATCH))
    y = Y[:28].clone()
    y[:BATCH] = 1 - y[:BATCH]
    settings = {"batch_size": BATCH, "allow_unusual": True}
    plan = plan_for(Coupled(), (ATTACK,), threat, X[:28], y, **settings)
    evidence = collect(plan, InProcess())
    assert len(evidence.sample(32, evidence.clean >= 0.5)) == 12, "a window of 16 has 8 errors"
    assert int(evidence.batch(evidence.clean >= 0.5)[0]) >= BATCH
    assert evidence.diagnoses.watched.robust.any()


@pytest.mark.parametrize("defense", [Coupled(), Stream()])
def test_one_round_is_audited_as_one_batch(defense):
    threat = Threat(THREAT, rounds="one")
    plan = plan_for(defense, (ATTACK,), threat, X[:20], Y[:20], batch_size=BATCH)
    evidence = collect(plan, InProcess())
    assert evidence.diagnoses.watched.value.shape == (21, 20)
    assert [len(group.outcomes.episodes[0].batch.unique()) for group in evidence.groups] == [1]


def test_the_steps_of_a_batch_that_attacks_did_not_break_are_watched():
    x, y, _ = by_lead()
    weak = torch.arange(BATCH)
    strong = torch.arange(len(x) - 3 * BATCH, len(x))
    rows = torch.cat([strong, weak])
    evidence = coupled_evidence(x[rows], y[rows], ATTACK)
    assert evidence.clean.all()
    assert not evidence.robust[-BATCH:].any()
    assert evidence.batch(evidence.clean >= 0.5)[0] < 3 * BATCH
    assert evidence.diagnoses.watched.robust.all()
