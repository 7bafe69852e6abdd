"""The item "more steps and restarts change nothing" counts what attacks missed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.audits.linear_defenses import IDENTITY, THREAT, X, Y, plan_for

import saddlepoint as sp
from saddlepoint.audits import collect
from saddlepoint.audits.diagnostics.checklist import checklist
from saddlepoint.audits.diagnostics.values import Compared
from saddlepoint.audits.pipeline import InProcess
from saddlepoint.audits.verdict import ItemName, State


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
