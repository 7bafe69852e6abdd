"""A defense that may reject: rejections are no errors, and those of clean images are recorded."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import Affine, keys, normal, uniform
from torch import Tensor

from saddlepoint import audit
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr, margin, merge_rejection, misclassified
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import L2, Linf, unbounded_ball
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation import Direct, Episode, FixedPoints, MultiTarget, Threat, evaluate
from saddlepoint.evaluation.referee import play

N = 40
D = 5
SPACE = Linf(0.2)
X = uniform(3, N, D)
NET = Affine.random(5, 4, D)
Y = NET(X).argmax(1)
PGD20 = Direct("pgd", PGD(steps=20))


class Guarded(Defense):
    """Rejects images with a mean pixel above a limit."""

    rejects = True

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = NET(x)
        beyond = (x.flatten(1).mean(1) - self.limit) * 10
        return Trace((View("final", torch.cat([logits, (logits.amax(1) + beyond)[:, None]], 1)),))


def test_the_reject_logit_is_merged_into_the_correct_class() -> None:
    z = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 1.5], [3.0, 2.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0])
    merged = merge_rejection(z, y, True)
    assert merged.tolist() == [[5.0, 2.0], [1.5, 2.0], [3.0, 2.0]]
    assert misclassified(merged, y).tolist() == [False, True, False]
    assert torch.equal(merge_rejection(z, y, False), z)
    assert merge_rejection(z.expand(7, 3, 3), y, True).shape == (7, 3, 2)


def test_a_nan_output_is_wrong_even_if_the_reject_logit_is_nan() -> None:
    z = torch.tensor([[1.0, 2.0, math.nan]])
    assert misclassified(merge_rejection(z, torch.tensor([0]), True), torch.tensor([0])).all()


def test_the_margin_is_the_minimum_of_the_error_margin_and_the_acceptance_margin() -> None:
    z = normal(1, 200, 4)
    beyond = normal(2, 200)
    y = torch.zeros(200, dtype=torch.long)
    value = margin(merge_rejection(torch.cat([z, (z.amax(1) + beyond)[:, None]], 1), y, True), y)
    ahead = z[:, 1:].amax(1) - z[:, 0]
    wrong = ahead > 0
    torch.testing.assert_close(
        value[wrong], torch.minimum(ahead, -beyond)[wrong], rtol=0, atol=1e-13
    )
    assert (value[~wrong] < 0).all()
    assert torch.equal(value > 0, wrong & (beyond < 0))


@pytest.mark.parametrize("loss", [margin, cross_entropy, dlr])
def test_a_defense_that_never_rejects_has_the_losses_of_one_that_cannot(loss) -> None:
    class Bare(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x)),))

    guarded, bare = (
        AttackObjective([defense], Y, loss)(X, keys(N)) for defense in (Guarded(1e5), Bare())
    )
    torch.testing.assert_close(guarded.value, bare.value, rtol=0, atol=1e-12)
    assert torch.equal(guarded.success, bare.success)


def test_a_rejection_counts_as_correct_and_is_recorded() -> None:
    limit = 0.55
    episode = play(Guarded(limit), PGD20, X, Y, Threat(SPACE), batch_size=16)
    rejected = episode.points.mean(1) > limit
    wrong = (NET(episode.points).argmax(1) != Y) & ~rejected
    assert torch.equal(episode.correct[0] == 0, wrong)
    assert torch.equal(episode.rejected[0, 0] == 1, rejected)
    assert torch.equal(episode.rejected[1, 0] == 1, X.mean(1) > limit)
    assert torch.equal(episode.answered[0] == 4, rejected)
    assert 0 < int(wrong.sum()) < N
    assert episode.rejected[1].mean() > 0


def test_an_attack_on_the_rejecting_defense_is_stronger_than_one_that_ignores_rejection() -> None:
    guard = Guarded(0.55)
    transferred = FixedPoints("transferred", play(Guarded(1e5), PGD20, X, Y, Threat(SPACE)).points)
    outcomes = evaluate(
        guard,
        [transferred, PGD20, Direct("apgd", APGD(20), loss=cross_entropy)],
        X,
        Y,
        threat=SPACE,
    )
    error = outcomes.payoff()[:, 0]
    assert (error[1:] > error[0]).all()


def test_rejection_is_not_a_target_class() -> None:
    episode = play(Guarded(0.55), MultiTarget(Direct("targets", APGD(10)), 9), X, Y, Threat(SPACE))
    assert (episode.correct < 1).any()


def test_a_defense_that_cannot_reject_has_no_recorded_rejections() -> None:
    class Bare(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x)),))

    episode = play(Bare(), FixedPoints(), X, Y, Threat(SPACE), batch_size=16)
    assert episode.rejected.shape == (2, 0, 0)
    assert Episode.joined([episode, episode]).rejected.shape == (2, 0, 0)


def test_rejections_of_clean_images_are_those_of_the_defense_adapted_to_the_attack() -> None:
    class AdaptiveLimit(Defense):
        """Rejects images above the mean of the batch that it adapted to."""

        memory = "batch"
        rejects = True

        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            return Guarded(float(x.mean()))

        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Guarded(1e5).trace(x, ctx)

    darker = (X - 0.2).clamp(min=0)
    episode = play(AdaptiveLimit(), FixedPoints("darker", darker), X, Y, Threat(SPACE))
    assert torch.equal(episode.rejected[1, 0] == 1, X.mean(1) > darker.mean())
    assert torch.equal(episode.rejected[0, 0] == 1, darker.mean(1) > darker.mean())


def test_an_audit_reports_rejections_of_clean_images() -> None:
    found = audit(Guarded(-1.0), X, Y, threat=SPACE, budget="quick")
    assert found.robust_accuracy == 1
    rejections = [s for s in found.symptoms if s.name == "rejections"]
    assert len(rejections) == 1
    assert "rejects 100 % of clean images" in rejections[0].message


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_the_unbounded_ball_contains_the_opposite_corner_of_the_box(p: float) -> None:
    space = unbounded_ball(D, p=p, box=(-1.0, 2.0))
    low = torch.full((1, D), -1.0, dtype=torch.float64)
    high = torch.full((1, D), 2.0, dtype=torch.float64)
    assert space.contains(high, low).all()
    torch.testing.assert_close(
        space.size(high - low),
        torch.tensor([space.radius], dtype=torch.float64),
        rtol=1e-15,
        atol=0,
    )
    torch.testing.assert_close(space.project(high, low), high, rtol=0, atol=0)


def test_an_unbounded_ball_without_pixels_raises_an_error() -> None:
    with pytest.raises(ValueError, match="at least one number, got pixels=0"):
        unbounded_ball(0)
    assert unbounded_ball(4, p=2).radius == L2(2.0).radius
