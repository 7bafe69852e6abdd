"""Number of images and attack budgets for each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saddlepoint.attacks.spaces import L2, Ball
from saddlepoint.papers.budgets import AutoAttackBudget, counted
from saddlepoint.papers.registry import Scale
from saddlepoint.zoo.adaptive.taxonomy import TABLE

_ALL = tuple(row.name for row in TABLE)


@dataclass(frozen=True)
class HedgeBudget:
    """Budget of the attack on the hedge defense."""

    steps: int = 50
    targets: int = 5
    draws: int = 4  # of EoT
    defense: int = 5  # steps of the attacked hedge defense

    def __str__(self) -> str:
        return (
            f"{counted(self.steps, 'step')}, {counted(self.targets, 'target')}, "
            f"{counted(self.draws, 'EoT draw')}, "
            f"attacking a defense with {counted(self.defense, 'step')}"
        )


@dataclass(frozen=True)
class EoTBudget:
    """Budget of an attack on a randomized defense."""

    steps: int = 10
    draws: int = 16  # of EoT
    restarts: int = 1

    def __str__(self) -> str:
        return (
            f"{counted(self.steps, 'step')}, {counted(self.draws, 'EoT draw')}, "
            f"{counted(self.restarts, 'restart')}"
        )


@dataclass(frozen=True)
class AttackBudgets:
    """Budgets of the paper's attacks; the defaults are the paper's."""

    auto: AutoAttackBudget = field(default_factory=AutoAttackBudget)
    pgd_steps: int = 20  # each a quarter of the radius, as in the attack on closed-loop control
    apgd_steps: int = 100  # of every APGD that has no budget of its own below
    targets: int = 9
    # APGD that differentiates through all updates of closed-loop control; one step takes several
    # passes.
    through_steps: int = 100
    hedge: HedgeBudget = HedgeBudget()
    rays_queries: int = 10_000
    soap_steps: int = 1000
    atld_restarts: int = 100
    longer_steps: int = 1000  # of the longer attack on AID-purifier
    longer_restarts: int = 5  # with each of its two losses
    contrastive: EoTBudget = EoTBudget(10, 16, 10)
    denoising: EoTBudget = EoTBudget(10, 200)

    def __str__(self) -> str:
        parts = (
            str(self.auto),
            f"PGD {self.pgd_steps} steps",
            f"APGD {self.apgd_steps} steps, {self.targets} targets",
            f"APGD through all updates of closed-loop control {self.through_steps} steps",
            f"RayS {self.rays_queries} queries",
            f"on the hedge defense {self.hedge}",
            f"on SOAP {self.soap_steps} steps",
            f"on ATLD {counted(self.atld_restarts, 'restart')}",
            f"the longer attack on AID-purifier {self.longer_steps} steps, "
            f"{counted(self.longer_restarts, 'restart')} with each of two losses",
            f"on contrastive reversal {self.contrastive}",
            f"on adaptive denoising {self.denoising}",
        )
        return f"budgets: {'; '.join(parts)}"


@dataclass(frozen=True)
class AdaptiveSetting:
    """Images, batch sizes and budgets of one scale."""

    test_images: int  # test images
    batch: int  # images per batch
    closed_loop_batch: int  # images per batch of closed-loop control, which couples its batch
    draws: int  # answers over which the accuracy of a randomized defense is averaged
    attack_budgets: AttackBudgets
    audited: tuple[str, ...]  # names of the defenses that blind-audit/adaptive audits
    l2: Ball  # L2 ball of Table 2
    threads: int | None  # None: torch's default; cached cells then depend on the number of cores
    repeats: int = 1


def _tiny() -> AdaptiveSetting:
    budgets = AttackBudgets(
        auto=AutoAttackBudget(2, 1, 4),
        pgd_steps=2,
        apgd_steps=3,
        targets=2,
        through_steps=2,
        hedge=HedgeBudget(2, 1, 2, 1),
        rays_queries=30,
        soap_steps=3,
        atld_restarts=1,
        longer_steps=4,
        longer_restarts=2,
        contrastive=EoTBudget(1, 2),
        denoising=EoTBudget(2, 2),
    )
    return AdaptiveSetting(
        test_images=8,
        batch=8,
        closed_loop_batch=8,
        draws=2,
        attack_budgets=budgets,
        audited=("AntiAdversary",),
        l2=L2(0.5),
        threads=1,
    )


def _small() -> AdaptiveSetting:
    budgets = AttackBudgets(
        auto=AutoAttackBudget(20, 2, 100),
        pgd_steps=20,
        apgd_steps=100,
        targets=3,
        through_steps=10,
        hedge=HedgeBudget(15, 2, 4, 5),
        rays_queries=500,
        soap_steps=30,
        atld_restarts=2,
        longer_steps=200,
        longer_restarts=2,
        contrastive=EoTBudget(6, 4),
        denoising=EoTBudget(10, 10),
    )
    # The record names what the audits of the others take.
    audited = ("SODEF", "AntiAdversary", "SOAP", "ATLD", "AIDPurifier")
    return AdaptiveSetting(
        test_images=64,
        batch=32,
        closed_loop_batch=16,
        draws=3,
        attack_budgets=budgets,
        audited=audited,
        l2=L2(1.5),
        threads=1,
    )


def _paper() -> AdaptiveSetting:
    return AdaptiveSetting(
        test_images=1000,
        batch=50,
        closed_loop_batch=16,
        draws=5,
        attack_budgets=AttackBudgets(),
        audited=_ALL,
        l2=L2(0.5),
        threads=None,
    )


SETTINGS: Mapping[Scale, AdaptiveSetting] = {
    "tiny": _tiny(),
    "small": _small(),
    "paper": _paper(),
}
