"""StopAtSuccess: the same examples are broken with fewer queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.toys import Centered, Halfspace, Noisy, Waves, images, keys, oracle_for, weights

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.early_stopping import StopAtSuccess
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.spaces import L1, L2, Ball, Linf
from saddlepoint.attacks.square import Square
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import SPSA

ATTACKS = [
    PGD(steps=12),
    PGD(steps=12, random_start=False, momentum=1.0),
    FGSM(),
    APGD(steps=20),
    VMI(steps=5, samples=3),
    Square(queries=60),
]
SPACES = [Linf(0.02), L2(0.1), L1(0.3)]


@pytest.fixture
def problem() -> tuple[Waves, torch.Tensor, torch.Tensor]:
    """24 images, two of which are misclassified without an attack."""
    x = images(24, 1, 5, 5)
    net = Waves(25)
    y = net(x).argmax(1)
    y[:2] = (y[:2] + 1) % 4
    return net, x, y


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
def test_early_stopping_breaks_the_same_rows_with_fewer_passes(
    attack: Any, space: Ball, problem: tuple[Waves, torch.Tensor, torch.Tensor]
) -> None:
    if isinstance(attack, Square) and space.p == 1:
        pytest.skip("Square has no L1")
    net, x, y = problem
    direct = Direct("full", attack)
    full = play(Plain(net), direct, x, y, Threat(space))
    early = play(Plain(net), replace(direct, stop_at_success=True), x, y, Threat(space))
    broken = early.correct[0] == 0
    # Successful points that the attack would not have proposed, such as neighbors, may break more
    # rows. No row may be lost.
    assert (broken >= (full.correct[0] == 0)).all()
    if not isinstance(attack, VMI) and space.p != 1:
        assert torch.equal(broken, full.correct[0] == 0)
    assert torch.equal(early.points[~broken], full.points[~broken])
    assert (early.forward <= full.forward).all()
    assert (early.backward <= full.backward).all()
    assert torch.equal(early.forward[~broken], full.forward[~broken])
    assert not early.copies.any()


def test_the_meter_stops_at_the_first_success(
    problem: tuple[Waves, torch.Tensor, torch.Tensor],
) -> None:
    """A row uses as many passes as the evaluation of its first success.

    PGD with that many steps breaks the row as well.
    """
    net, x, y = problem
    threat = Threat(Linf(0.02))
    stop = Direct("pgd", PGD(steps=30, step_size=0.002), stop_at_success=True)
    passes = play(Plain(net), stop, x, y, threat).forward
    assert passes.amin() < 31
    for steps in range(1, 6):
        broken = (
            play(
                Plain(net), Direct("pgd", PGD(steps=steps, step_size=0.002)), x, y, threat
            ).correct[0]
            == 0
        )
        assert torch.equal(broken, passes <= steps + 1)


def test_decision_attacks_are_unchanged(problem: tuple[Waves, torch.Tensor, torch.Tensor]) -> None:
    net, x, y = problem
    threat = Threat(Linf(0.05), access="decision")
    full, early = (
        play(Plain(net), Direct("rays", RayS(queries=80), stop_at_success=stop), x, y, threat)
        for stop in (False, True)
    )
    assert (early.correct == full.correct).all()
    assert torch.equal(early.forward, full.forward)  # RayS stops by itself
    assert torch.equal(early.points, full.points)


def test_rows_that_succeeded_are_not_queried_again() -> None:
    x = images(4, 9, low=0.4, high=0.6)
    space = Linf(0.1)
    # Label 0 is misclassified everywhere.
    oracle = oracle_for(Halfspace(weights(9), -20.0), torch.tensor([0, 1, 0, 1]))
    early = StopAtSuccess.of(oracle, x, space)
    first = early.gradient(x + 0.05)
    assert first.evaluation.success.tolist() == [True, False, True, False]
    assert first.evaluation.value.isfinite().all()
    evaluation, grad = early.gradient(x - 0.05)
    assert evaluation.success.tolist() == [True, False, True, False]
    assert evaluation.value.isneginf().tolist() == [True, False, True, False]
    assert (grad[[0, 2]] == 0).all()
    assert (grad[[1, 3]] != 0).all()
    value, far = early.class_margins(x)
    assert value.value.shape == (1, 4)
    assert far[0, 0].abs().sum() == 0
    assert value.value.isfinite().all()
    assert early.decide(x).tolist() == [True, False, True, False]
    assert oracle.meter.forward.tolist() == [1, 4, 1, 4]
    assert early[torch.tensor([0, 1])].score(x[:2]).value.isneginf().tolist() == [True, False]
    assert oracle.meter.forward.tolist() == [1, 5, 1, 4]
    assert torch.equal(early.successes.points[[0, 2]], x[[0, 2]] + 0.05)


def test_an_oracle_with_all_rows_succeeded_makes_no_queries() -> None:
    x = images(3, 9, low=0.4, high=0.6)
    oracle = oracle_for(Halfspace(weights(9), -20.0), torch.zeros(3).long(), limit=2)
    early = StopAtSuccess.of(oracle, x, Linf(0.1))
    for _ in range(5):
        assert early.score(x + 0.05).success.all()
    assert early.gradient(x).grad.shape == x.shape
    assert early.class_margins(x).grad.shape == (1, *x.shape)
    assert early.left() > 2**40
    assert (early.allowance() > 2**40).all()
    assert oracle.meter.forward.tolist() == [1, 1, 1]


def test_the_center_and_points_outside_the_set_are_no_successes() -> None:
    x = images(2, 9, low=0.4, high=0.6)
    early = StopAtSuccess.of(
        oracle_for(Halfspace(weights(9), -20.0), torch.zeros(2).long()), x, Linf(0.1)
    )
    assert early.score(x).success.all()
    assert early.score(x + 0.3).success.all()
    assert not early.succeeded.any()
    early.score(torch.stack([x[0] + 0.1, x[1]]))
    assert early.succeeded.tolist() == [True, False]


def test_spsa_stops_early_as_well(problem: tuple[Waves, torch.Tensor, torch.Tensor]) -> None:
    net, x, y = problem
    spsa = Direct("spsa", PGD(steps=4), estimator=SPSA(samples=3), stop_at_success=True)
    episode = play(Plain(net), spsa, x, y, Threat(Linf(0.1), access="score"))
    assert set(episode.forward.tolist()) <= {7, 14, 21, 28, 29}
    assert episode.forward.amin() < 29


@pytest.mark.parametrize(
    ("defense", "reason"),
    [(Noisy(Waves(25)), "randomized defense"), (Centered(Waves(25)), "depend on each other")],
)
def test_coupled_and_random_defenses_raise_errors(defense: Defense, reason: str) -> None:
    x = images(2, 1, 5, 5)
    with pytest.raises(ValueError, match=reason):
        play(
            defense,
            Direct("pgd", PGD(steps=2), stop_at_success=True),
            x,
            torch.zeros(2).long(),
            Threat(Linf(0.1)),
        )
    if defense.coupled:
        with pytest.raises(ValueError, match="can only be evaluated together"):
            StopAtSuccess.of(oracle_for(defense, torch.zeros(2).long()), x, Linf(0.1))


def test_a_row_keeps_its_first_successful_point() -> None:
    """Without early stopping, PGD would leave the misclassified region again."""
    x = torch.full((1, 4), 0.5).double()
    oracle = oracle_for(Halfspace(torch.ones(4).double(), 2.1), torch.zeros(1).long())
    early = StopAtSuccess.of(oracle, x, Linf(0.2))
    found = early.finish(
        PGD(steps=9, step_size=0.03, random_start=False)(early, x, Linf(0.2), keys(1))
    )
    torch.testing.assert_close(found.point, x + 0.03, rtol=0, atol=1e-15)
    torch.testing.assert_close(found.max_loss_point, x + 0.03, rtol=0, atol=1e-15)
    assert oracle.meter.forward.tolist() == [2]
