"""How many images and how much of every attack an experiment gets at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saddlepoint.attacks.spaces import L2, Ball
from saddlepoint.audits.planning.suite import Budget
from saddlepoint.papers.deq.scales import Budget as AutoBudget
from saddlepoint.papers.registry import Scale
from saddlepoint.zoo.adaptive.taxonomy import TABLE

_ALL = tuple(one.name for one in TABLE)


@dataclass(frozen=True)
class Hedged:
    """Of the attack on the hedge defense."""

    steps: int = 50
    targets: int = 5
    draws: int = 4
    defense: int = 5  # steps of the defense that is attacked

    def __str__(self) -> str:
        return f"{self.steps} steps, {self.targets} targets, {self.draws} draws against {self.defense} of its steps"


@dataclass(frozen=True)
class Drawn:
    """Of attacks on random defenses."""

    steps: int = 10
    draws: int = 16
    restarts: int = 1

    def __str__(self) -> str:
        return f"{self.steps} steps, {self.draws} draws, {self.restarts} restart{'' if self.restarts == 1 else 's'}"


@dataclass(frozen=True)
class Spend:
    """Budgets of the paper's attacks; the defaults are its own."""

    auto: AutoBudget = field(default_factory=AutoBudget)
    pgd: int = 20  # steps of a quarter of the radius, as on closed-loop control
    apgd: int = 100  # steps of an APGD that no other line is about
    targets: int = 9
    through: int = (
        100  # steps of an APGD through all updates of closed-loop control, each several passes long
    )
    hedge: Hedged = Hedged()
    rays: int = 10_000  # queries
    soap: int = 1000  # steps
    atld: int = 100  # restarts
    contrastive: Drawn = Drawn(10, 16, 10)
    denoising: Drawn = Drawn(10, 200)

    def __str__(self) -> str:
        return (
            f"budgets: {self.auto}; PGD {self.pgd} steps; APGD {self.apgd} steps, {self.targets} targets; through all updates "
            f"of closed-loop control {self.through} steps; RayS {self.rays} queries"
            f"; on the hedge defense {self.hedge}; on SOAP {self.soap} steps; on ATLD {self.atld} restarts; on contrastive "
            f"reversal {self.contrastive}; on adaptive denoising {self.denoising}"
        )


@dataclass(frozen=True)
class Setting:
    """Images, repeats and budgets."""

    scored: int  # test images
    fewer: Mapping[str, int]  # where everything is sent to defenses whose answers are dear
    batch: int
    steered: int  # images in a batch of closed-loop control, which couples them
    draws: int  # answers by which a random defense is judged
    spend: Spend
    suite: Budget  # of audits
    audited: tuple[str, ...]  # defenses
    euclidean: Ball  # of Table 2
    threads: (
        int | None
    )  # None: torch's own choice, and cells then belong to machines with as many cores

    def images(self, defense: str) -> int:
        return self.fewer.get(defense, self.scored)


def _tiny() -> Setting:
    spend = Spend(
        AutoBudget(2, 1, 4), 2, 3, 2, 2, Hedged(2, 1, 2, 1), 30, 3, 1, Drawn(1, 2), Drawn(2, 2)
    )
    return Setting(8, {}, 8, 8, 2, spend, "quick", ("AntiAdversary",), L2(0.5), 1)


def _small() -> Setting:
    spend = Spend(
        AutoBudget(20, 2, 100),
        20,
        100,
        3,
        10,
        Hedged(15, 2, 4, 5),
        500,
        30,
        2,
        Drawn(6, 4),
        Drawn(10, 10),
    )
    dear = dict.fromkeys(("ClosedLoopControl", "HedgeDefense", "AdaptiveDenoising"), 16)
    dear |= {"SOAP": 32, "AIDPurifier": 32, "ContrastiveReversal": 8}
    return Setting(64, dear, 32, 16, 3, spend, "standard", _ALL, L2(1.5), 1)


def _paper() -> Setting:
    return Setting(1000, {}, 50, 16, 5, Spend(), "standard", _ALL, L2(0.5), None)


SETTINGS: Mapping[Scale, Setting] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
