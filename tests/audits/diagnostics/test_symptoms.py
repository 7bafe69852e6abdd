"""Each symptom appears on a defense that causes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.audits.linear_defenses import (
    APGD,
    CLEANED,
    IDENTITY,
    NET,
    REVERSED,
    ROUNDED,
    SQUARE,
    THREAT,
    TRANSFER,
    NoisyGradient,
)
from tests.problems import Transductive, smooth, uniform
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.attack_trials import RecordSteps, WatchAttack
from saddlepoint.audits.diagnostics.symptoms import _watched, symptoms
from saddlepoint.audits.verdict import Level, SymptomName, Verdict
from saddlepoint.evaluation import GreedyModelSpace, Threat


class Rippled(nn.Module):
    """A linear net with a ripple far finer than the radius: nearby gradients are unrelated."""

    def forward(self, x):
        score = (x - 0.5) @ NET.w + 0.02 * torch.sin(5e4 * x).sum(1)
        return torch.stack([score, -score], 1)


MUCH_NOISE = NoisyGradient(1000.0)
RIPPLED = Rippled().eval()
SHORT_EOT = sp.Direct("eot", sp.APGD(5), estimator=sp.EoT(2))
SLOW = sp.Direct("short", sp.PGD(20, step_size=0.0001, random_start=False))


def test_a_sound_evaluation_has_no_symptom(evidence_of):
    assert list(symptoms(evidence_of(IDENTITY, (APGD, TRANSFER, SQUARE)))) == []


@pytest.mark.parametrize(
    ("name", "target", "adversaries"),
    [
        (SymptomName.TRANSFER_STRONGER, REVERSED, (APGD, TRANSFER)),
        (SymptomName.UNAVAILABLE_GRADIENTS, ROUNDED, (APGD,)),
        (SymptomName.PIECEWISE_CONSTANT, CLEANED, (SQUARE,)),
        (SymptomName.EOT_NOT_CONVERGED, MUCH_NOISE, (SHORT_EOT,)),
        (SymptomName.GRADIENTS_DISAGREE, RIPPLED, (APGD,)),
        (SymptomName.INCOMPLETE_OPTIMIZATION, NET, (SLOW,)),
        (SymptomName.UNBOUNDED_FAILS, ROUNDED, (APGD,)),
        (SymptomName.BLACK_BOX_STRONGER, ROUNDED, (APGD, SQUARE)),
        (SymptomName.TRANSFER_FAILS, CLEANED, (TRANSFER,)),
    ],
)
def test_each_failure_is_reported_with_advice(evidence_of, name, target, adversaries):
    found = {symptom.name: symptom for symptom in symptoms(evidence_of(target, adversaries))}
    assert name in found
    assert found[name].remedy or found[name].level is Level.NOTE


class Ridge(nn.Module):
    """Class 1 in a narrow band around the images, which one step of a radius jumps over."""

    def forward(self, x):
        distance = (x - 0.5).abs().mean(1)
        band = (1 - ((distance - 0.005) / 0.001).abs()).clamp(min=0)
        score = 0.1 - 0.1 * distance - 3 * band
        return torch.stack([score, -score], 1)


def test_a_misclassified_point_before_the_worst_point_is_reported_as_overshooting():
    x = torch.full((40, 16), 0.501, dtype=torch.float64)
    y = torch.zeros(40, dtype=torch.long)
    one_step = sp.Direct("one step", sp.PGD(1, step_size=0.01, random_start=False))
    result = sp.audit(Ridge().eval(), x, y, threat=THREAT, adversaries=[one_step])
    assert result.robust_accuracy == 1
    levels = {s.name: s.level for s in result.symptoms}
    assert levels[SymptomName.OVERSHOOTING] is Level.SERIOUS
    assert result.verdict is Verdict.INCONCLUSIVE


def test_recorded_steps_show_every_row_and_end_like_the_attack_itself(evidence_of):
    job = evidence_of(IDENTITY, (APGD,)).plan.job
    rows = torch.arange(20)
    steps = WatchAttack(APGD, rows).compute(job)
    value = steps["value"]
    gradient = steps["gradient"]
    assert value.shape == steps["success"].shape == gradient.shape == (21, 20)
    assert gradient[-1].isnan().all()  # the last call evaluates a point without a gradient
    episode = job.play(APGD, rows)
    assert torch.equal(steps["robust"], episode.correct[0] >= 0.5)
    assert torch.equal(job.play(RecordSteps(APGD, [], rows), rows).points, episode.points)
    # The margin is the highest recorded value, since APGD returns the best point.
    torch.testing.assert_close(value.amax(0), episode.margin[0], rtol=0, atol=1e-12)
    # The margin of a linear net has the gradient 2 w everywhere.
    largest = (2 * NET.w.detach().abs().amax()).expand(20, 20)
    torch.testing.assert_close(gradient[:-1], largest, rtol=0, atol=1e-12)


def test_recorded_steps_of_an_attack_on_the_least_of_several_losses():
    """Round i attacks 1 + i models for as many times the steps; PGD evaluates its last point."""
    x = uniform(0, 6, 6)
    net = smooth(1)
    defense = Transductive(net, torch.zeros(6, dtype=torch.float64))
    job = Job(defense, x, net(x).argmax(1), Threat(sp.Linf(0.1)), seed=0, batch_size=6)
    pgd = sp.Direct("pgd", sp.PGD(3))
    least = GreedyModelSpace("gmsa-min", pgd, 3, MinLoss())
    rows = torch.arange(6)
    steps = WatchAttack(least, rows).compute(job)
    assert steps["value"].shape == (4 + 7 + 10, 6)
    episode = job.play(least, rows)
    assert torch.equal(steps["robust"], episode.correct[0] >= 0.5)
    assert torch.equal(job.play(RecordSteps(least, [], rows), rows).points, episode.points)


def test_points_from_elsewhere_that_break_one_more_image_are_a_serious_symptom(evidence_of):
    """Points are known of one image that the attack leaves correct, and of no other."""
    slow = sp.Direct("short", sp.PGD(1, step_size=1e-9, random_start=False))
    worst = evidence_of(NET, (APGD,))
    broken = (worst.robust < 0.5).nonzero()[:, 0]
    points = worst.plan.job.x.clone()
    points[broken[0]] = worst.points[broken[0]]
    alone = evidence_of(NET, (slow,))
    assert SymptomName.EXTERNAL_STRONGER not in {s.name for s in symptoms(alone)}
    both = evidence_of(NET, (slow, sp.Points("elsewhere", points)))
    found = {s.name: s for s in symptoms(both)}
    assert found[SymptomName.EXTERNAL_STRONGER].level is Level.SERIOUS
    assert "elsewhere broke 1 image that" in found[SymptomName.EXTERNAL_STRONGER].message
    assert float((alone.robust - both.robust).sum()) == 1
    # Where they failed, they are clean images: this is no sign of a weak attack of the audit.
    assert SymptomName.CLEAN_COPIES not in found
    known = evidence_of(NET, (APGD, sp.Points("elsewhere", points)))
    assert SymptomName.EXTERNAL_STRONGER not in {s.name for s in symptoms(known)}


def test_points_from_elsewhere_do_not_hide_that_black_box_attacks_are_stronger(evidence_of):
    best = evidence_of(ROUNDED, (SQUARE,)).points
    found = symptoms(evidence_of(ROUNDED, (APGD, SQUARE, sp.Points("elsewhere", best))))
    assert SymptomName.BLACK_BOX_STRONGER in {s.name for s in found}


@pytest.mark.parametrize(("coupled", "reported"), [(False, True), (True, False)])
def test_a_misclassified_point_is_silent_only_where_rows_are_independent(coupled, reported):
    """A row of a coupled batch may be misclassified in one batch and not in the worst one."""
    seen = SimpleNamespace(
        success=torch.tensor([[True, True, False]]),
        robust=torch.tensor([True, True, False]),
        gradient=torch.ones(1, 3),
        value=torch.linspace(0, 1, 9).sqrt()[:, None].expand(-1, 3),
    )
    evidence = SimpleNamespace(
        diagnoses=SimpleNamespace(watched=seen),
        defense=SimpleNamespace(random=False, unit="batch" if coupled else "example"),
        strongest_name="pgd",
    )
    found = [one.name for one in _watched(evidence)]
    assert (SymptomName.SILENT_SUCCESS in found) == reported
