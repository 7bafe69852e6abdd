"""Indicators of attack failure, on curves whose answer is known and on defenses that make each of them."""

from __future__ import annotations

import pytest
import torch
from saddlepoint.audits.diagnostics.spied import spy
from tests.audits.test_checklist import (
    APGD,
    CLEANED,
    NET,
    ROUNDED,
    SQUARE,
    THREAT,
    TRANSFER,
    WRONG_WAY,
    Purified,
    Tossed,
    trials,
)
from tests.problems import Transductive, smooth, uniform
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.indicators import (
    break_point_angle,
    falls,
    jagged,
    late_rise,
    silent_success,
    steps_only,
    unstable,
    zero_gradients,
)
from saddlepoint.audits.diagnostics.symptoms import signs

T = 41
LINE = torch.linspace(0, 1, T, dtype=torch.float64)
AT_ONCE = (LINE > 0).double()
FLAT = torch.zeros(T, dtype=torch.float64)


def columns(*curves):
    return torch.stack(curves, 1)


def test_a_curve_that_arrived_at_once_a_straight_one_and_one_that_never_rose():
    found = late_rise(columns(AT_ONCE, LINE, FLAT))
    torch.testing.assert_close(
        found, torch.tensor([0.0, 0.25, 0.0], dtype=torch.float64), rtol=0, atol=1e-12
    )
    angle = break_point_angle(columns(AT_ONCE, LINE, FLAT))
    # The bend of the first lies one step right of the corner (0, 1): arccos of -(1/40) / sqrt(1 + 1/40^2) is 91.4 degrees.
    torch.testing.assert_close(
        angle, torch.tensor([91.432, 180.0, 180.0], dtype=torch.float64), rtol=0, atol=1e-3
    )


def test_the_bend_does_not_depend_on_the_scale_of_the_objective():
    curve = 1 - (-5 * LINE).exp()
    angle = break_point_angle(columns(curve, 1e6 * curve - 3, 1e-6 * curve))
    torch.testing.assert_close(angle, angle[:1].expand(3), rtol=0, atol=1e-3)
    assert 90 < angle[0] < 135


def test_only_the_best_value_so_far_counts_for_arrival_and_only_falls_for_bouncing():
    bouncing = AT_ONCE - 0.5 * (torch.arange(T) % 2)
    assert late_rise(columns(bouncing)) == 0
    assert falls(columns(bouncing, LINE, FLAT)).tolist() == [0.5, 0, 0]


def test_a_success_that_was_thrown_away_is_silent_and_one_that_was_kept_is_not():
    success = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 0, 0]]).bool()
    assert silent_success(success, torch.tensor([True, True, False])).tolist() == [
        True,
        False,
        False,
    ]


def test_zero_gradients_are_counted_among_those_that_were_asked_for():
    nan = torch.nan
    slope = torch.tensor([[0.0, 0.0, 1.0, nan], [nan, 1.0, 2.0, nan]], dtype=torch.float64)
    assert zero_gradients(slope).tolist() == [1.0, 0.5, 0.0, 0.0]


def test_relative_changes_are_cut_off_and_lines_are_read_from_end_to_end():
    assert unstable(
        torch.tensor([[1.1, 9.0], [0.9, -9.0]]), torch.tensor([1.0, 1.0])
    ).tolist() == pytest.approx([0.1, 1.0])
    along = torch.tensor([[0.0, 3.0, 0.0], [1.0, 2.0, 0.0], [2.0, 1.0, 0.0]])
    assert jagged(along).tolist() == [False, True, False]
    assert steps_only(along).tolist() == [0, 0, 1]


def test_a_watched_attack_shows_every_step_of_every_row_and_ends_as_it_would_have():
    found = trials(Purified(), [APGD])
    rows = torch.arange(20)
    seen = spy(found.job, APGD, rows)
    assert seen.value.shape == seen.success.shape == seen.slope.shape == (21, 20)
    assert seen.slope[-1].isnan().all()  # a last reading, not a slope
    assert torch.equal(seen.episode.points, found.job.play(APGD, rows).points.cpu())
    # The margin of a linear net has the slope 2 w everywhere.
    torch.testing.assert_close(
        seen.slope[:-1], (2 * NET.w.detach().abs().amax()).expand(20, 20), rtol=0, atol=1e-12
    )


class Ridge(nn.Module):
    """Class 1 in a narrow ridge on the way out: a step of one radius jumps over it, and behind it the answer is right again."""

    def forward(self, x):
        way = (x - 0.5).abs().mean(1)
        score = 0.1 - 0.1 * way - 3 * (1 - ((way - 0.005) / 0.001).abs()).clamp(min=0)
        return torch.stack([score, -score], 1)


class Gritty(nn.Module):
    """A linear net under a ripple far finer than the radius: gradients at neighboring points have nothing in common."""

    def forward(self, x):
        score = (x - 0.5) @ NET.w + 0.02 * torch.sin(5e4 * x).sum(1)
        return torch.stack([score, -score], 1)


def names(target, sent, **more):
    return {symptom.name: symptom for symptom in signs(trials(target, sent, **more))}


def test_a_straightforward_audit_has_no_symptom():
    assert names(Purified(), [APGD, TRANSFER, SQUARE]) == {}


@pytest.mark.parametrize(
    ("name", "target", "sent"),
    [
        ("transfer beats white box", WRONG_WAY, [APGD, TRANSFER]),
        ("unavailable gradients", ROUNDED, [APGD]),
        ("staircase", CLEANED, [SQUARE]),
        (
            "EoT has not converged",
            Tossed(1000.0),
            [sp.Direct("eot", sp.APGD(5), estimator=sp.EoT(2))],
        ),
        ("gradients disagree", Gritty().eval(), [APGD]),
        (
            "incomplete optimization",
            NET,
            [sp.Direct("short", sp.PGD(20, step_size=0.0001, random_start=False))],
        ),
        ("unbounded attack fails", ROUNDED, [APGD]),
        ("black box beats white box", ROUNDED, [APGD, SQUARE]),
        ("transfer fails", CLEANED, [TRANSFER]),
    ],
)
def test_each_failure_is_named_with_a_remedy(name, target, sent):
    found = names(target, sent)
    assert name in found
    assert found[name].remedy or found[name].level == "note"


def test_a_point_on_the_way_that_fools_is_found():
    x = torch.full((40, 16), 0.501, dtype=torch.float64)
    y = torch.zeros(40, dtype=torch.long)
    jump = sp.Direct("jump", sp.PGD(1, step_size=0.01, random_start=False))
    result = sp.audit(Ridge().eval(), x, y, threat=THREAT, adversaries=[jump])
    assert result.robust_accuracy == 1
    assert {s.name: s.level for s in result.symptoms}["overshot"] == "serious"
    assert result.verdict == "cannot be told"


def test_an_attack_on_the_least_of_several_losses_can_be_watched():
    """Round i attacks 1 + i models for as many times the steps; PGD reads its last point too."""
    x = uniform(0, 6, 6)
    net = smooth(1)
    learner = Transductive(net, torch.zeros(6, dtype=torch.float64))
    job = Job(learner, x, net(x).argmax(1), sp.Threat(sp.Linf(0.1)), seed=0, batch_size=6)
    least = sp.GreedyModelSpace("gmsa-min", sp.Direct("pgd", sp.PGD(3)), rounds=3, over=MinLoss())
    seen = spy(job, least, torch.arange(6))
    assert seen.value.shape == (4 + 7 + 10, 6)
    assert torch.equal(seen.episode.points, job.play(least, torch.arange(6)).points)
