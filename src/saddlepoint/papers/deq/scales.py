"""Number of images and attack budgets for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.square import Square
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.registry import Scale

_QUARTER = Radii(1 / 4)  # 2/255 at the paper's radius of 8/255


@dataclass(frozen=True)
class DEQSetting:
    """Images, attacks and budgets of one scale."""

    selected_on: int  # held-out training images to select the early state and intermediate attacks
    test_images: int  # test images
    reduced_images: int  # the first test images, which AutoAttack attacks as well
    pgd: PGD  # the paper's PGD-10
    long: PGD  # the paper's PGD-1000
    square: Square
    auto: AutoAttackBudget
    states: int  # number of first states that are attacked one by one
    # Values of k in Eq. 13-16. The released code takes one step more than its k says, so that its
    # strongest gradient, z_1 with k = 1 and no damping, is k = 2 here.
    unrolled: tuple[int, ...]
    dampings: tuple[float, ...]
    batch: int  # images per batch
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores
    repeats: int = 1

    @property
    def budgets(self) -> str:
        """The attack budgets in words."""
        return (
            f"PGD-10 with {self.pgd.steps} steps, PGD-1000 with {self.long.steps}, each step a "
            f"quarter of the radius; Square with {self.square.queries} queries; {self.auto}"
        )


SETTINGS: Mapping[Scale, DEQSetting] = {
    "tiny": DEQSetting(
        selected_on=12,
        test_images=16,
        reduced_images=6,
        pgd=PGD(3, _QUARTER),
        long=PGD(6, _QUARTER),
        square=Square(12),
        auto=AutoAttackBudget(2, 1, 2),
        states=3,
        unrolled=(1, 3),
        dampings=(0.5, 1.0),
        batch=16,
        threads=1,
    ),
    "small": DEQSetting(
        selected_on=200,
        test_images=300,
        reduced_images=100,
        pgd=PGD(10, _QUARTER),
        long=PGD(100, _QUARTER),
        square=Square(500),
        auto=AutoAttackBudget(20, 3, 200),
        states=8,
        unrolled=(1, 2, 5, 9),
        dampings=(0.5, 1.0),
        batch=100,
        threads=1,
    ),
    "real": DEQSetting(
        selected_on=100,
        test_images=1000,
        reduced_images=100,
        pgd=PGD(10, _QUARTER),
        long=PGD(50, _QUARTER),
        square=Square(500),
        auto=AutoAttackBudget(20, 3, 200),
        states=8,
        unrolled=(2, 9),
        dampings=(0.5, 1.0),
        batch=250,
        threads=1,
    ),
    "paper": DEQSetting(
        selected_on=1000,
        test_images=10_000,
        reduced_images=10_000,
        pgd=PGD(10, _QUARTER),
        long=PGD(1000, _QUARTER),
        square=Square(),
        auto=AutoAttackBudget(),
        states=8,
        unrolled=(1, 2, 5, 9),
        dampings=(0.5, 1.0),
        batch=96,
        threads=None,
    ),
}
