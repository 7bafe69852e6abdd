"""MinNormTracker: which point a minimum-norm attack keeps and proposes."""

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
    """Misclassifies where the first pixel has increased by more than `by`.

    If coupled, the threshold also increases by a tenth of the increase of the other rows.
    """

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


def tracker(center: Tensor, coupled: bool = False) -> MinNormTracker:
    return MinNormTracker(center, SPACE, Keys.of(0, torch.arange(len(center))), coupled)


def test_the_nearest_success_is_kept_not_the_highest_value():
    center = images(n=1, d=3)
    oracle = Threshold(center, 0.1)
    nearest = tracker(center)
    for by in (0.3, 0.12, 0.2):
        nearest.update(raised(center, by), oracle.score(raised(center, by)))
    assert abs(nearest.size.item() - 0.12) < 1e-12
    found = nearest.result(oracle)
    assert abs(SPACE.size(found.point - center).item() - 0.12) < 1e-7
    assert abs(SPACE.size(found.max_loss_point - center).item() - 0.3) < 1e-12


def test_the_bisection_ends_at_the_boundary():
    center = images(n=2, d=3)
    oracle = Threshold(center, 0.1)
    nearest = tracker(center)
    nearest.update(raised(center, 0.2, 0.25), oracle.score(raised(center, 0.2, 0.25)))
    nearest.search(oracle, 30)
    assert (nearest.size - 0.1).abs().max() < 1e-8


def test_the_clean_image_is_not_proposed_even_if_it_is_misclassified():
    center = images(n=2, d=3)
    oracle = Threshold(center, -0.1)
    nearest = tracker(center)
    nearest.update(center, oracle.score(center))
    found = nearest.result(oracle)
    assert (found.point != center).any(1).all()
    assert (SPACE.size(found.point - center) < 1e-4).all()
    assert oracle.score(found.point).success.all()


def test_a_success_outside_the_set_is_projected_into_it():
    center = images(n=1, d=3, low=0.2, high=0.3)
    oracle = Threshold(center, 0.6)
    nearest = tracker(center)
    for by in (0.1, 0.4, 0.7):
        nearest.update(raised(center, by), oracle.score(raised(center, by)))
    found = nearest.result(oracle)
    assert SPACE.contains(found.point, center).all()
    # The success is shortened to the radius of the set.
    assert abs(SPACE.size(found.point - center).item() - 0.5) < 1e-6


def test_nan_points_are_never_kept():
    center = images(n=1, d=3)
    oracle = Threshold(center, 0.1)
    nearest = tracker(center)
    invalid = torch.full_like(center, torch.nan)
    nearest.update(invalid, Evaluation(invalid[:, 0], torch.ones(1, dtype=torch.bool)))
    assert nearest.result(oracle).point.isfinite().all()


def test_coupled_rows_are_lengthened_until_they_succeed_together():
    center = images(n=4, d=3, low=0.2, high=0.3)
    oracle = Threshold(center, 0.1, coupled=True)
    nearest = tracker(center, coupled=True)
    for batch in (
        (0.15, 0.0, 0.0, 0.0),
        (0.0, 0.15, 0.0, 0.0),
        (0.0, 0.0, 0.15, 0.0),
        (0.0, 0.0, 0.0, 0.15),
    ):
        nearest.update(raised(center, *batch), oracle.score(raised(center, *batch)))
    # Together they need more than each row alone, which succeeds from 0.1 on.
    assert not oracle.score(raised(center, 0.14, 0.14, 0.14, 0.14)).success.any()
    nearest.search(oracle, 6)
    found = nearest.result(oracle)
    assert oracle.score(found.point).success.all()
    assert SPACE.contains(found.point, center).all()


def test_without_any_success_the_highest_value_is_kept():
    center = images(n=3, d=3)
    oracle = Threshold(center, 5.0)
    nearest = tracker(center)
    first = raised(center, 0.1, 0.3, 0.2)
    second = center + 0.01 * (numbers(9, 3, 3) - 0.5)
    for x in (first, second):
        nearest.update(x, oracle.score(x))
    assert nearest.size.isinf().all()
    assert (nearest.result(oracle).point - first).abs().max() < 1e-7


def test_a_point_outside_the_set_is_never_proposed():
    """Also if no point inside has a value and the clean image cannot be proposed."""
    center = images(n=1, d=3)
    nearest = tracker(center)
    outside = raised(center, 0.6)
    nearest.update(
        outside, Evaluation(torch.tensor([1.0], dtype=center.dtype), torch.tensor([False]))
    )

    class AlwaysNaN(Threshold):
        def score(self, x: Tensor) -> Evaluation:
            return Evaluation(
                torch.full((len(x),), torch.nan, dtype=x.dtype),
                torch.zeros(len(x), dtype=torch.bool),
            )

    found = nearest.result(AlwaysNaN(center, 0.1))
    for point in (found.point, found.max_loss_point):
        assert SPACE.contains(point, center).all()
