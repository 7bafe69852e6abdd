"""Loss curves of attacks: when an attack had converged, and the closed form of a linear net."""

from __future__ import annotations

import pytest
import torch
from tests.audits.test_audit import LINF, NET, X, Y, symptoms_of
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.fmn import FMN
from saddlepoint.audits.verdict import SymptomName


class Curved(nn.Module):
    """A score with a changing slope: short steps increase the loss for a long time."""

    def forward(self, x):
        score = (x.flatten(1) - 0.5) @ NET.w + 0.05 * torch.sin(40 * x).flatten(1).sum(1)
        return torch.stack([score, -score], 1)


CURVED = Curved().eval()
Y_CURVED = CURVED(X).argmax(1)


def curved_audit(*adversaries, radius=0.02):
    return sp.audit(CURVED, X, Y_CURVED, threat=sp.Linf(radius), adversaries=adversaries)


def short_steps(name, steps):
    return sp.Direct(name, sp.PGD(steps, step_size=0.0005, random_start=False))


@pytest.mark.parametrize(("steps", "increasing"), [(8, True), (200, False)])
def test_an_attack_that_ends_before_convergence_is_reported(steps, increasing):
    result = curved_audit(short_steps("pgd", steps))
    (row,) = result.rows
    assert row.loss_curve.images[-1] == row.attacked
    # One pass on the clean image, the steps, and the last evaluation.
    assert row.loss_curve.passes[-1] == steps + 2
    assert (SymptomName.LOSS_INCREASING in symptoms_of(result)) is increasing


def test_a_minimum_norm_attack_does_not_maximize_a_loss_and_is_not_reported():
    result = curved_audit(sp.Direct("fmn", FMN(20)), radius=0.01)
    assert result.rows[0].loss_curve.final_slope > 0.5  # its last point is projected into the set
    assert SymptomName.LOSS_INCREASING not in symptoms_of(result)


def test_an_attack_that_ends_because_it_succeeded_is_not_reported():
    attack = sp.Direct("apgd", sp.APGD(10), stop_at_success=True)
    result = sp.audit(NET, X, Y, threat=sp.Linf(0.2), adversaries=[attack])
    assert result.rows[0].robust_accuracy == 0
    assert result.rows[0].loss_curve.final_slope > 0.5
    assert SymptomName.LOSS_INCREASING not in symptoms_of(result)


@pytest.mark.parametrize(
    ("order", "increasing"),
    [(("short", "long"), False), (("long", "short"), False), (("short",), True)],
    ids=["short first", "long first", "short only"],
)
def test_only_the_strongest_attack_must_have_converged(order, increasing):
    attacks = {"short": short_steps("short", 3), "long": sp.Direct("long", sp.APGD(50))}
    result = curved_audit(*(attacks[name] for name in order))
    assert (SymptomName.LOSS_INCREASING in symptoms_of(result)) is increasing


def test_the_loss_curve_of_a_linear_net_ends_at_the_closed_form():
    """The margin is -2 s, the best point of the ball adds 2 r ||w||_1, and the first step of APGD,
    two radii long, ends there."""
    apgd = sp.Direct("apgd", sp.APGD(10))
    result = sp.audit(NET, X, Y, threat=LINF, adversaries=[apgd])
    curve = result.rows[0].loss_curve
    score = (((X - 0.5) @ NET.w.detach()) * (1 - 2 * Y)).double()
    best = -2 * score.mean() + 2 * 0.01 * NET.w.detach().abs().sum()
    assert curve.passes == tuple(range(1, 13))
    assert curve.value[0] is None  # the pass on the clean image is no evaluation of the attack
    assert curve.value[-1] == pytest.approx(float(best), abs=1e-5)  # float32 sums of 16 terms
    assert curve.value[2] == pytest.approx(curve.value[-1], abs=1e-5)
    assert curve.misclassified[-1] == pytest.approx(1 - result.robust_accuracy, abs=1e-12)
