"""Number of images, repeats and attack budgets for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import Subset
from saddlepoint.evaluation import Adversary, CleanCopies
from saddlepoint.games.exit_attacks import ATTACKS, AtExits, Craft, partial
from saddlepoint.gradients import EoT
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.registry import Scale

_QUARTER = Radii(1 / 4)


@dataclass(frozen=True)
class MultiExitSetting:
    """Images, repeats and attacks of one scale."""

    played: int  # images of the payoff matrix: training images held out to select the epoch
    scored: int  # test images
    swept: int  # the first test images, on which all six attacks are run
    repeats: int
    strategies: int  # random strategies of Fig. 6
    payoff: PGD  # attack of the payoff matrices
    attacks: Mapping[str, Craft]  # by the paper's names
    stock: Craft  # AutoAttack that returns the clean image where it fails
    budgets: str  # the attack budgets in words
    batch: int  # images per batch
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores


@dataclass(frozen=True)
class Rows:
    """Makes the rows of a game: partial attacks by PGD on a set of exits."""

    attack: PGD

    def __call__(self, subset: Subset) -> Adversary:
        """Return the partial attack on this set of exits."""
        return partial(subset, self.attack, name=f"pgd-{self.attack.steps}")


@dataclass(frozen=True)
class AutoAttackOnExits:
    """Makes AutoAttack on the mean logits of a set of exits."""

    budget: AutoAttackBudget = field(default_factory=AutoAttackBudget)
    copies: bool = False  # where the attack fails, return the clean image as its published code

    def __call__(self, subset: Subset) -> Adversary:
        """Return AutoAttack on this set of exits."""
        attack = self.budget.attack()
        return AtExits(CleanCopies(attack) if self.copies else attack, subset)

    def __str__(self) -> str:
        return str(self.budget)


def _tiny() -> MultiExitSetting:
    once = PGD(1, _QUARTER)
    auto = AutoAttackOnExits(AutoAttackBudget(1, 1, 1))
    attacks: dict[str, Craft] = {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": Rows(once),
        "PGD-100": Rows(PGD(2, _QUARTER)),
        "EoT-PGD-20": lambda subset: partial(subset, once, estimator=EoT(2), name="eot-pgd-1"),
        "VMI-FGSM": lambda subset: partial(subset, VMI(2, _QUARTER, samples=1), name="vmi-fgsm"),
        "AutoAttack": auto,
    }
    return MultiExitSetting(
        played=12,
        scored=12,
        swept=12,
        repeats=1,
        strategies=20,
        payoff=once,
        attacks=attacks,
        stock=replace(auto, copies=True),
        budgets=(
            "PGD-20 and EoT-PGD-20 with 1 step, PGD-100 with 2, VMI-FGSM with 2 steps and 1 "
            f"neighbor, {auto}"
        ),
        batch=12,
        threads=1,
    )


def _full_attacks() -> dict[str, Craft]:
    return {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": ATTACKS["pgd-20"],
        "PGD-100": ATTACKS["pgd-100"],
        "EoT-PGD-20": ATTACKS["eot-pgd-20"],
        "VMI-FGSM": ATTACKS["vmi-fgsm"],
        "AutoAttack": AutoAttackOnExits(),
    }


def _small() -> MultiExitSetting:
    auto = AutoAttackOnExits(AutoAttackBudget(10, 1, 50))
    return MultiExitSetting(
        played=100,
        scored=100,
        swept=50,
        repeats=2,
        strategies=200,
        payoff=PGD(20, _QUARTER),
        attacks={**_full_attacks(), "AutoAttack": auto},
        stock=replace(auto, copies=True),
        budgets=f"{auto}; the other attacks with the paper's budgets",
        batch=100,
        threads=1,
    )


def _paper() -> MultiExitSetting:
    return MultiExitSetting(
        played=2000,
        scored=10_000,
        swept=10_000,
        repeats=5,
        strategies=200,
        payoff=PGD(20, _QUARTER),
        attacks=_full_attacks(),
        stock=AutoAttackOnExits(copies=True),
        budgets="all attacks with the paper's budgets",
        batch=500,
        threads=None,
    )


SETTINGS: Mapping[Scale, MultiExitSetting] = {
    "tiny": _tiny(),
    "small": _small(),
    "paper": _paper(),
}
