from __future__ import annotations

import torch
from tests.attacks.boundaries import images, numbers
from torch import Tensor

from saddlepoint.attacks.min_norm import MinNormTracker
from saddlepoint.attacks.spaces import Ball
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys

SPACE = Ball(2, 0.5)


class Threshold:
    """Errs where the first pixel has risen by more than `by`; under coupling, by more than that and a tenth of the others' rise."""

    def __init__(self, center: Tensor, by: float, coupled: bool = False) -> None:
        self.center = center
        self.by = by
        self.coupled = coupled

    def score(self, x: Tensor) -> Evaluation:
        rise = (x - self.center)[:, 0]
        value = rise - self.by - (0.1 * (rise.sum() - rise) if self.coupled else 0.0)
        return Evaluation(value, value > 0)


def raised(center: Tensor, *by: float) -> Tensor:
    return (
        center
        + torch.tensor(by, dtype=center.dtype)[:, None]
        * torch.eye(center.shape[1], dtype=center.dtype)[0]
    )


def fresh(center: Tensor, coupled: bool = False) -> MinNormTracker:
    return MinNormTracker(center, SPACE, Keys.of(0, torch.arange(len(center))), coupled)


def test_the_nearest_success_wins_over_higher_value():
    center = images(n=1, d=3)
    oracle = Threshold(center, 0.1)
    nearest = fresh(center)
    for by in (0.3, 0.12, 0.2):
        nearest.update(raised(center, by), oracle.score(raised(center, by)))
    assert abs(nearest.size.item() - 0.12) < 1e-12
    found = nearest.result(oracle)
    assert abs(SPACE.size(found.point - center).item() - 0.12) < 1e-7
    assert abs(SPACE.size(found.max_loss_point - center).item() - 0.3) < 1e-12


def test_the_bisection_stops_at_the_boundary():
    center = images(n=2, d=3)
    oracle = Threshold(center, 0.1)
    nearest = fresh(center)
    nearest.update(raised(center, 0.2, 0.25), oracle.score(raised(center, 0.2, 0.25)))
    nearest.search(oracle, 30)
    assert (nearest.size - 0.1).abs().max() < 1e-8


def test_a_copy_of_the_clean_image_is_no_proposal_even_if_it_is_misclassified():
    center = images(n=2, d=3)
    oracle = Threshold(center, -0.1)
    nearest = fresh(center)
    nearest.update(center, oracle.score(center))
    found = nearest.result(oracle)
    assert (found.point != center).any(1).all()
    assert (SPACE.size(found.point - center) < 1e-4).all()
    assert oracle.score(found.point).success.all()


def test_a_success_outside_the_set_gives_way_to_the_best_inside():
    center = images(n=1, d=3, low=0.2, high=0.3)
    oracle = Threshold(center, 0.6)
    nearest = fresh(center)
    for by in (0.1, 0.4, 0.7):
        nearest.update(raised(center, by), oracle.score(raised(center, by)))
    found = nearest.result(oracle)
    assert SPACE.contains(found.point, center).all()
    assert (
        abs(SPACE.size(found.point - center).item() - 0.5) < 1e-6
    )  # the success itself, as far as the set goes


def test_what_is_not_a_number_is_never_kept():
    center = images(n=1, d=3)
    oracle = Threshold(center, 0.1)
    nearest = fresh(center)
    broken = torch.full_like(center, torch.nan)
    nearest.update(broken, Evaluation(broken[:, 0], torch.ones(1, dtype=torch.bool)))
    assert nearest.result(oracle).point.isfinite().all()


def test_coupled_rows_that_succeeded_apart_are_lengthened_until_they_succeed_together():
    center = images(n=4, d=3, low=0.2, high=0.3)
    oracle = Threshold(center, 0.1, coupled=True)
    nearest = fresh(center, coupled=True)
    for batch in (
        (0.15, 0.0, 0.0, 0.0),
        (0.0, 0.15, 0.0, 0.0),
        (0.0, 0.0, 0.15, 0.0),
        (0.0, 0.0, 0.0, 0.15),
    ):
        nearest.update(raised(center, *batch), oracle.score(raised(center, *batch)))
    assert not oracle.score(
        raised(center, 0.14, 0.14, 0.14, 0.14)
    ).success.any()  # each alone would stand at 0.11
    nearest.search(oracle, 6)
    found = nearest.result(oracle)
    assert oracle.score(found.point).success.all()
    assert SPACE.contains(found.point, center).all()


def test_without_any_success_the_highest_value_is_kept():
    center = images(n=3, d=3)
    oracle = Threshold(center, 5.0)
    nearest = fresh(center)
    first = raised(center, 0.1, 0.3, 0.2)
    second = center + 0.01 * (numbers(9, 3, 3) - 0.5)
    for x in (first, second):
        nearest.update(x, oracle.score(x))
    assert nearest.size.isinf().all()
    assert (nearest.result(oracle).point - first).abs().max() < 1e-7


def test_a_point_outside_the_set_is_never_proposed_for_want_of_another():
    """Nothing inside was worth anything, and the clean image is no proposal: that is no reason to go outside."""
    center = images(n=1, d=3)
    nearest = fresh(center)
    outside = raised(center, 0.6)
    nearest.update(
        outside, Evaluation(torch.tensor([1.0], dtype=center.dtype), torch.tensor([False]))
    )

    class Silent(Threshold):
        def score(self, x: Tensor) -> Evaluation:
            return Evaluation(
                torch.full((len(x),), torch.nan, dtype=x.dtype),
                torch.zeros(len(x), dtype=torch.bool),
            )

    found = nearest.result(Silent(center, 0.1))
    for point in (found.point, found.max_loss_point):
        assert SPACE.contains(point, center).all()
