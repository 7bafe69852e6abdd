"""How much of everything an experiment gets at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.vmi import VMI
from saddlepoint.defenses import Subset
from saddlepoint.evaluation import Adversary, Cascade, CleanCopies, autoattack
from saddlepoint.games.exit_attacks import ATTACKS, AtExits, Craft, partial
from saddlepoint.gradients import EoT
from saddlepoint.papers.registry import Scale

_QUARTER = Radii(1 / 4)


@dataclass(frozen=True)
class Setting:
    """Images, repeats and budgets."""

    played: int  # images that build a game, of the part of the training set on which the epoch was chosen
    scored: int  # test images
    swept: int  # the first of these: attacked in six ways
    repeats: int
    strategies: int  # of Fig. 6
    payoff: PGD  # fills the games' matrices
    attacks: Mapping[str, Craft]  # by the paper's names
    stock: Craft  # AutoAttack as its own code returns it
    budgets: str  # in words
    batch: int
    threads: (
        int | None
    )  # None: torch's own choice, and cells then belong to machines with as many cores


@dataclass(frozen=True)
class Rows:
    """A game's rows: partial attacks by this PGD."""

    attack: PGD

    def __call__(self, subset: Subset) -> Adversary:
        return partial(subset, self.attack, name=f"pgd-{self.attack.steps}")


@dataclass(frozen=True)
class AutoAttack:
    """AutoAttack on the mean logits of some exits, at a budget of its own."""

    steps: int = 100
    targets: int = 9
    queries: int = 5000
    copies: bool = (
        False  # the clean image where the attack does not succeed, as the stock code returns it
    )

    def __call__(self, subset: Subset) -> Adversary:
        sent = Cascade(
            "autoattack", autoattack(steps=self.steps, targets=self.targets, queries=self.queries)
        )
        return AtExits(CleanCopies(sent) if self.copies else sent, subset)

    def __str__(self) -> str:
        counts = {"step": self.steps, "target": self.targets}
        words = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items()]
        return f"AutoAttack with {', '.join(words)} and {self.queries} {'query' if self.queries == 1 else 'queries'}"


def _tiny() -> Setting:
    once = PGD(1, _QUARTER)
    auto = AutoAttack(1, 1, 1)
    attacks: dict[str, Craft] = {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": Rows(once),
        "PGD-100": Rows(PGD(2, _QUARTER)),
        "EoT-PGD-20": lambda subset: partial(subset, once, estimator=EoT(2), name="eot-pgd-1"),
        "VMI-FGSM": lambda subset: partial(subset, VMI(2, _QUARTER, samples=1), name="vmi-fgsm"),
        "AutoAttack": auto,
    }
    budgets = f"PGD-20 and EoT-PGD-20 with 1 step, PGD-100 with 2, VMI-FGSM with 2 steps and 1 neighbor, {auto}"
    return Setting(12, 12, 12, 1, 20, once, attacks, replace(auto, copies=True), budgets, 12, 1)


def _full() -> dict[str, Craft]:
    return {
        "FGSM": ATTACKS["fgsm"],
        "PGD-20": ATTACKS["pgd-20"],
        "PGD-100": ATTACKS["pgd-100"],
        "EoT-PGD-20": ATTACKS["eot-pgd-20"],
        "VMI-FGSM": ATTACKS["vmi-fgsm"],
        "AutoAttack": AutoAttack(),
    }


def _small() -> Setting:
    auto = AutoAttack(10, 1, 50)
    attacks: dict[str, Craft] = {**_full(), "AutoAttack": auto}
    return Setting(
        100, 100, 50, 2, 200, PGD(20, _QUARTER), attacks, replace(auto, copies=True),
        f"{auto}; the other attacks at full length", 100, 1,
    )  # fmt: skip


def _paper() -> Setting:
    return Setting(
        2000,
        10_000,
        10_000,
        5,
        200,
        PGD(20, _QUARTER),
        _full(),
        AutoAttack(copies=True),
        "all attacks at full length",
        500,
        None,
    )


SETTINGS: Mapping[Scale, Setting] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
