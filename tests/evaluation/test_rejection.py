"""A defense that may refuse: a refusal is no error, and what it costs on clean images stands beside it."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import Affine, keys, normal, uniform
from torch import Tensor

from saddlepoint import audit
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, dlr, fooled, margin, refusing
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
    """Refuses where the mean of the pixels has moved beyond a limit."""

    rejects = True

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        logits = NET(x)
        beyond = (x.flatten(1).mean(1) - self.limit) * 10
        return Trace((View("final", torch.cat([logits, (logits.amax(1) + beyond)[:, None]], 1)),))


def test_a_refusal_is_folded_into_the_right_class() -> None:
    z = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 1.5], [3.0, 2.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0])
    judged = refusing(z, y, True)
    assert judged.tolist() == [[5.0, 2.0], [1.5, 2.0], [3.0, 2.0]]
    assert fooled(judged, y).tolist() == [False, True, False]
    assert torch.equal(refusing(z, y, False), z)
    assert refusing(z.expand(7, 3, 3), y, True).shape == (7, 3, 2)


def test_an_answer_that_is_no_number_is_wrong_also_where_it_might_have_been_a_refusal() -> None:
    z = torch.tensor([[1.0, 2.0, math.nan]])
    assert fooled(refusing(z, torch.tensor([0]), True), torch.tensor([0])).all()


def test_the_attackers_margin_is_the_smaller_of_being_wrong_and_being_let_through() -> None:
    z = normal(1, 200, 4)
    beyond = normal(2, 200)
    y = torch.zeros(200, dtype=torch.long)
    value = margin(refusing(torch.cat([z, (z.amax(1) + beyond)[:, None]], 1), y, True), y)
    ahead = z[:, 1:].amax(1) - z[:, 0]
    wrong = ahead > 0
    torch.testing.assert_close(
        value[wrong], torch.minimum(ahead, -beyond)[wrong], rtol=0, atol=1e-13
    )
    assert (value[~wrong] < 0).all()
    assert torch.equal(value > 0, wrong & (beyond < 0))


@pytest.mark.parametrize("loss", [margin, cross_entropy, dlr])
def test_a_defense_that_refuses_nothing_is_attacked_as_if_it_could_not(loss) -> None:
    class Bare(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x)),))

    guarded, bare = (
        AttackObjective([defense], Y, loss)(X, keys(N)) for defense in (Guarded(1e5), Bare())
    )
    torch.testing.assert_close(guarded.value, bare.value, rtol=0, atol=1e-12)
    assert torch.equal(guarded.success, bare.success)


def test_what_is_refused_is_right_and_the_record_says_how_much_was() -> None:
    limit = 0.55
    episode = play(Guarded(limit), PGD20, X, Y, Threat(SPACE), batch_size=16)
    refused = episode.points.mean(1) > limit
    wrong = (NET(episode.points).argmax(1) != Y) & ~refused
    assert torch.equal(episode.correct[0] == 0, wrong)
    assert torch.equal(episode.rejected[0, 0] == 1, refused)
    assert torch.equal(episode.rejected[1, 0] == 1, X.mean(1) > limit)
    assert torch.equal(episode.answered[0] == 4, refused)
    assert 0 < int(wrong.sum()) < N
    assert episode.rejected[1].mean() > 0


def test_the_attacker_climbs_around_a_refusal_that_a_blind_one_runs_into() -> None:
    guard = Guarded(0.55)
    blind = FixedPoints("blind", play(Guarded(1e5), PGD20, X, Y, Threat(SPACE)).points)
    outcomes = evaluate(
        guard, [blind, PGD20, Direct("apgd", APGD(20), loss=cross_entropy)], X, Y, threat=SPACE
    )
    error = outcomes.payoff()[:, 0]
    assert (error[1:] > error[0]).all()


def test_no_target_is_the_refusal() -> None:
    episode = play(Guarded(0.55), MultiTarget(Direct("targets", APGD(10)), 9), X, Y, Threat(SPACE))
    assert (episode.correct < 1).any()


def test_a_defense_that_cannot_refuse_has_no_such_record() -> None:
    class Bare(Defense):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Trace((View("final", NET(x)),))

    episode = play(Bare(), FixedPoints(), X, Y, Threat(SPACE), batch_size=16)
    assert episode.rejected.shape == (2, 0, 0)
    assert Episode.joined([episode, episode]).rejected.shape == (2, 0, 0)


def test_rejection_of_clean_images_is_that_of_the_defense_that_met_the_attack() -> None:
    class Learner(Defense):
        """Refuses what is above the mean of the batch it has seen: what an attacker sends decides which clean images go."""

        memory = "batch"
        rejects = True

        def adapt(self, x: Tensor, ctx: Context) -> Defense:
            return Guarded(float(x.mean()))

        def trace(self, x: Tensor, ctx: Context) -> Trace:
            return Guarded(1e5).trace(x, ctx)

    darker = (X - 0.2).clamp(min=0)
    episode = play(Learner(), FixedPoints("darker", darker), X, Y, Threat(SPACE))
    assert torch.equal(episode.rejected[1, 0] == 1, X.mean(1) > darker.mean())
    assert torch.equal(episode.rejected[0, 0] == 1, darker.mean(1) > darker.mean())


def test_an_audit_says_what_stands_behind_its_accuracy() -> None:
    found = audit(Guarded(-1.0), X, Y, threat=SPACE, budget="quick")
    assert found.robust_accuracy == 1
    rejections = [s for s in found.symptoms if s.name == "rejections"]
    assert len(rejections) == 1
    assert "refuses 100.0 % of clean images" in rejections[0].message


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_arbitrary_perturbations_lead_from_any_corner_of_the_box_to_any_other(p: float) -> None:
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


def test_an_image_of_no_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one number, got pixels=0"):
        unbounded_ball(0)
    assert unbounded_ball(4, p=2).radius == L2(2.0).radius
