"""Number of images, repeats and attack budgets for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import Subset
from saddlepoint.evaluation import Adversary, CleanCopies
from saddlepoint.games.exit_adversaries import OnExits
from saddlepoint.games.exit_attacks import ATTACKS, ExitAttack, partial_attack
from saddlepoint.gradients import EoT
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.registry import Scale

_QUARTER = Radii(1 / 4)


@dataclass(frozen=True)
class MultiExitSetting:
    """Images, repeats and attacks of one scale."""

    game_images: int  # images of the payoff matrix: training images held out to select the epoch
    test_images: int  # test images
    reduced_images: int  # the first test images, on which all six attacks are run
    repeats: int
    strategies: int  # random strategies of Fig. 6
    payoff: PGD  # attack of the payoff matrices
    attacks: Mapping[str, ExitAttack]  # by the paper's names
    clean_copies_autoattack: ExitAttack  # AutoAttack that returns the clean image where it fails
    budgets: str  # the attack budgets in words
    batch: int  # images per batch
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores


@dataclass(frozen=True)
class PartialPGD:
    """Makes the rows of a game: partial attacks by PGD on a set of exits."""

    attack: PGD

    def __call__(self, subset: Subset) -> Adversary:
        """Return the partial attack on this set of exits."""
        return partial_attack(subset, self.attack, name=f"pgd-{self.attack.steps}")


@dataclass(frozen=True)
class AutoAttackOnExits:
    """Makes AutoAttack on the mean logits of a set of exits."""

    budget: AutoAttackBudget = field(default_factory=AutoAttackBudget)
    copies: bool = False  # where the attack fails, return the clean image as its published code

    def __call__(self, subset: Subset) -> Adversary:
        """Return AutoAttack on this set of exits."""
        attack = self.budget.attack()
        return OnExits(CleanCopies(attack) if self.copies else attack, subset)

    def __str__(self) -> str:
        return str(self.budget)


def _tiny() -> MultiExitSetting:
    once = PGD(1, _QUARTER)
    auto = AutoAttackOnExits(AutoAttackBudget(1, 1, 1))
    attacks: dict[str, ExitAttack] = {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": PartialPGD(once),
        "PGD-100": PartialPGD(PGD(2, _QUARTER)),
        "EoT-PGD-20": lambda subset: partial_attack(
            subset, once, estimator=EoT(2), name="eot-pgd-1"
        ),
        "VMI-FGSM": lambda subset: partial_attack(
            subset, VMI(2, _QUARTER, samples=1), name="vmi-fgsm"
        ),
        "AutoAttack": auto,
    }
    return MultiExitSetting(
        game_images=12,
        test_images=12,
        reduced_images=12,
        repeats=1,
        strategies=20,
        payoff=once,
        attacks=attacks,
        clean_copies_autoattack=replace(auto, copies=True),
        budgets=(
            "PGD-20 and EoT-PGD-20 with 1 step, PGD-100 with 2, VMI-FGSM with 2 steps and 1 "
            f"neighbor, {auto}"
        ),
        batch=12,
        threads=1,
    )


def _full_attacks() -> dict[str, ExitAttack]:
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
        game_images=100,
        test_images=100,
        reduced_images=50,
        repeats=2,
        strategies=200,
        payoff=PGD(20, _QUARTER),
        attacks={**_full_attacks(), "AutoAttack": auto},
        clean_copies_autoattack=replace(auto, copies=True),
        budgets=f"{auto}; the other attacks with the paper's budgets",
        batch=100,
        threads=1,
    )


def _paper() -> MultiExitSetting:
    return MultiExitSetting(
        game_images=2000,
        test_images=10_000,
        reduced_images=10_000,
        repeats=5,
        strategies=200,
        payoff=PGD(20, _QUARTER),
        attacks=_full_attacks(),
        clean_copies_autoattack=AutoAttackOnExits(copies=True),
        budgets="all attacks with the paper's budgets",
        batch=500,
        threads=None,
    )


SETTINGS: Mapping[Scale, MultiExitSetting] = {
    "tiny": _tiny(),
    "small": _small(),
    "paper": _paper(),
}
