"""Number of images, repeats and attack budgets for each scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import Subset, exit_name
from saddlepoint.evaluation import Adversary, CleanCopies
from saddlepoint.games.exit_adversaries import OnExits
from saddlepoint.games.exit_attacks import (
    ATTACKS,
    AttackSettings,
    ExitAttack,
    lafeat,
    partial_attack,
)
from saddlepoint.papers.budgets import AutoAttackBudget, counted
from saddlepoint.papers.multi_exit import published
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
    names: Mapping[str, str]  # names in tables by the paper's names, if budgets are smaller
    clean_copies_autoattack: ExitAttack  # AutoAttack that returns the clean image where it fails
    lafeat: LafeatBudget
    budgets: str  # the attack budgets in words
    batch: int  # images per batch
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores
    rows: Literal["all", "intervals"] = "all"  # attacked sets of exits; "intervals": neighbors only

    def name(self, attack: str) -> str:
        """The name in tables of an attack, given by its name in the paper."""
        return self.names.get(attack, attack)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in tables of the attacks of this scale."""
        return tuple(map(self.name, self.attacks))

    @property
    def weaker(self) -> dict[str, tuple[str, ...]]:
        """By attack, the attacks that are weaker by design, all by their names in tables.

        FGSM is a single step. VMI-FGSM is a transfer attack: it follows gradients that are smoothed
        over a neighborhood.
        """
        smoothed = dict.fromkeys(published.ATTACKS[1:], ("FGSM", "VMI-FGSM"))
        pairs = {**smoothed, "VMI-FGSM": ("FGSM",)}
        return {
            self.name(one): tuple(self.name(other) for other in others if other in self.attacks)
            for one, others in pairs.items()
            if one in self.attacks
        }


@dataclass(frozen=True)
class PartialPGD:
    """Makes the rows of a game: partial attacks by PGD on a set of exits."""

    attack: PGD

    def __call__(self, subset: Subset) -> Adversary:
        """Return the partial attack on this set of exits."""
        return partial_attack(subset, self.attack, name=f"pgd-{self.attack.steps}")


@dataclass(frozen=True)
class EoTPGD:
    """Makes EoT-PGD: PGD on the expected loss over the exits that the defender may draw.

    An attacker that knows only a set of exits expects one of them, drawn uniformly. Its expected
    loss is the mean of losses, so this is PGD. AIMER knows the defender's mixed strategy.
    """

    attack: PGD

    def __call__(self, subset: Subset) -> Adversary:
        """Return the attack on this set of exits."""
        return PartialPGD(self.attack)(subset)

    def on_strategy(self, subsets: Sequence[Subset], probabilities: Tensor) -> Adversary:
        """Return the attack on the expected loss of a mixed strategy.

        max_x' sum_j s_j CE(mean logits of E_j), exact: nothing is drawn.

        Args:
            subsets: the sets of exits E_j, [D].
            probabilities: their probabilities s_j, [D].
        """
        views = tuple(map(exit_name, range(1, max(map(max, subsets)) + 1)))
        settings = AttackSettings(views, self.attack)
        name = f"eot-pgd-{self.attack.steps} on the defender's strategy"
        return settings.on_expected_loss(subsets, probabilities, name)


@dataclass(frozen=True)
class LafeatBudget:
    """Makes LAFEAT on a set of exits, with all other exits as latent heads."""

    steps: int = 100
    betas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    targets: int = 9

    def on(self, exits: int) -> ExitAttack:
        """Return the function that attacks a set of exits of a network with so many exits."""
        return lambda subset: lafeat(
            subset, exits, steps=self.steps, betas=self.betas, targets=self.targets
        )

    def __str__(self) -> str:
        return (
            f"LAFEAT with {counted(self.steps, 'step')}, {counted(len(self.betas), 'weight')} of "
            f"the latent loss and {counted(self.targets, 'target')}"
        )


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
        "EoT-PGD-20": EoTPGD(once),
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
        names={
            "PGD-20": "PGD-1",
            "PGD-100": "PGD-2",
            "EoT-PGD-20": "EoT-PGD-1",
            "VMI-FGSM": "VMI-FGSM (2 steps)",
            "AutoAttack": auto.budget.title,
        },
        clean_copies_autoattack=replace(auto, copies=True),
        lafeat=LafeatBudget(1, (0.5,), 0),
        budgets=(
            "1 step in place of the 20 of PGD-20 and EoT-PGD-20, 2 in place of the 100 of PGD-100, "
            f"2 and 1 neighbor in place of the 20 and 5 of VMI-FGSM; {auto}"
        ),
        batch=12,
        threads=1,
    )


def _full_attacks() -> dict[str, ExitAttack]:
    return {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": PartialPGD(PGD(20, _QUARTER)),
        "PGD-100": ATTACKS["pgd-100"],
        "EoT-PGD-20": EoTPGD(PGD(20, _QUARTER)),
        "VMI-FGSM": ATTACKS["vmi-fgsm"],
        "AutoAttack": AutoAttackOnExits(),
    }


def _small() -> MultiExitSetting:
    auto = AutoAttackOnExits(AutoAttackBudget(10, 1, 50))
    return MultiExitSetting(
        game_images=100,
        test_images=100,
        reduced_images=64,
        repeats=2,
        strategies=200,
        payoff=PGD(20, _QUARTER),
        attacks={**_full_attacks(), "AutoAttack": auto},
        names={"AutoAttack": auto.budget.title},
        clean_copies_autoattack=replace(auto, copies=True),
        lafeat=LafeatBudget(20, (0.0, 0.3, 0.6), 1),
        budgets=f"{auto}; the other attacks with the paper's budgets",
        batch=100,
        threads=1,
    )


def _real() -> MultiExitSetting:
    """Images and attacks of a third-party network with seven exits.

    The rows of the game are many, so they are attacked by few steps: three from the clean image, of
    decreasing length.
    """
    full = _full_attacks()
    return MultiExitSetting(
        game_images=500,
        test_images=500,
        reduced_images=64,
        repeats=1,
        strategies=200,
        payoff=PGD(3, Radii(0.8), random_start=False, decreasing=True),
        attacks={name: full[name] for name in ("FGSM", "PGD-20")},
        names={},
        clean_copies_autoattack=AutoAttackOnExits(copies=True),
        lafeat=LafeatBudget(),
        budgets="FGSM and PGD-20 with the paper's budgets",
        batch=50,
        threads=1,
        rows="intervals",
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
        names={},
        clean_copies_autoattack=AutoAttackOnExits(copies=True),
        lafeat=LafeatBudget(),
        budgets="all attacks with the paper's budgets",
        batch=500,
        threads=None,
    )


SETTINGS: Mapping[Scale, MultiExitSetting] = {
    "tiny": _tiny(),
    "small": _small(),
    "real": _real(),
    "paper": _paper(),
}
