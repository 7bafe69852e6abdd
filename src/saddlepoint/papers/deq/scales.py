"""How much of everything an experiment gets at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.square import Square
from saddlepoint.papers.registry import Scale

_QUARTER = Radii(1 / 4)  # 2/255 of the paper's 8/255


@dataclass(frozen=True)
class Budget:
    """AutoAttack's."""

    steps: int = 100
    targets: int = 9
    queries: int = 5000

    def __str__(self) -> str:
        targets = "target" if self.targets == 1 else "targets"
        return f"AutoAttack with {self.steps} steps, {self.targets} {targets} and {self.queries} queries"


@dataclass(frozen=True)
class Setting:
    """Images and budgets."""

    chosen_on: int  # images of the training set, held out, on which early state and intermediate attacks are chosen
    scored: int  # test images
    swept: int  # the first of these: attacked by AutoAttack too
    pgd: PGD  # the paper's PGD-10
    long: PGD  # its PGD-1000
    square: Square
    auto: Budget
    states: int  # the first so many are attacked one by one
    unrolled: tuple[int, ...]  # k of Eq. 13-16
    dampings: tuple[float, ...]
    batch: int
    threads: (
        int | None
    )  # None: torch's own choice, and cells then belong to machines with as many cores

    @property
    def budgets(self) -> str:
        return (
            f"PGD-10 with {self.pgd.steps} steps, PGD-1000 with {self.long.steps}, each of a quarter of the radius; Square with "
            f"{self.square.queries} queries; {self.auto}"
        )


SETTINGS: Mapping[Scale, Setting] = {
    "tiny": Setting(
        12,
        16,
        6,
        PGD(3, _QUARTER),
        PGD(6, _QUARTER),
        Square(12),
        Budget(2, 1, 2),
        3,
        (1, 3),
        (0.5, 1.0),
        16,
        1,
    ),
    "small": Setting(
        200,
        300,
        100,
        PGD(10, _QUARTER),
        PGD(100, _QUARTER),
        Square(500),
        Budget(20, 3, 200),
        8,
        (1, 5, 9),
        (0.5, 1.0),
        100,
        1,
    ),
    "paper": Setting(
        1000,
        10_000,
        10_000,
        PGD(10, _QUARTER),
        PGD(1000, _QUARTER),
        Square(),
        Budget(),
        8,
        (1, 5, 9),
        (0.5, 1.0),
        96,
        None,
    ),
}
