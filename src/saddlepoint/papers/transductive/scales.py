"""How much of everything an experiment gets at each scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.pgd import PGD
from saddlepoint.evaluation import Portfolio, high_confidence
from saddlepoint.papers.deq.scales import Budget
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.transductive.nets import grained, normed
from saddlepoint.training.recipe import Adam, Augment, Shift, unchanged
from saddlepoint.zoo.nets import dann_mnist
from saddlepoint.zoo.transductive import Distinguishing, DomainTraining, Tuning, cifar_domains


@dataclass(frozen=True)
class Cleansing:
    """Tables 1 and 6: RMC on a sequence of single images."""

    data: str
    images: int  # of one sequence
    library: int | None  # training images in D', before copies; None: all
    copies: int
    crafted: PGD  # makes the copies
    augment: Augment
    neighbors: int
    tuning: Tuning
    attack: PGD
    rounds: int  # T + 1, of FPA and GMSA


@dataclass(frozen=True)
class Entropy:
    """Tables 2 and 5: DENT in batches."""

    bases: tuple[str, ...]  # recipes
    images: int
    batch: int
    window: int  # sorted together in Table 5
    steps: int  # of each run of the portfolio
    step_size: float
    starts: int
    targets: int
    rounds: int
    through: PGD  # differentiates all steps of the adaptation: ours
    changed: tuple[str, ...] = ()  # what was changed after a result had been seen

    @property
    def portfolio(self) -> Portfolio:
        return high_confidence(
            steps=self.steps, step_size=self.step_size, starts=self.starts, targets=self.targets
        )


@dataclass(frozen=True)
class Domains:
    """Table 3: DANN on all test images at once."""

    data: str
    images: int
    labeled: int | None  # training images that it learns from; None: all
    training: DomainTraining
    attack: PGD
    rounds: int


@dataclass(frozen=True)
class Fresh:
    """Table 4: networks that are trained beforehand, drawn afterwards."""

    data: str
    images: int
    sources: int  # T + 1 networks that are attacked; one more rehearses the defender
    more: int  # so many times the sources, in a second try
    finals: int  # networks that may answer
    attack: PGD


@dataclass(frozen=True)
class Refusing:
    """Figure 1: URejectron."""

    data: str
    photographs: int | None  # taken before any is copied; None: all
    per_class: int  # images of each class, copies included; 63 % of them train, 30 % test
    asked: int | None  # ordinary images of the batch, of the test images; None: all
    known: int | None  # training images that the discriminator learns from; None: all
    training: Distinguishing
    pgd: PGD
    cw: CW
    thresholds: int
    changed: tuple[str, ...] = ()  # what was changed after a result had been seen


@dataclass(frozen=True)
class Setting:
    """Images, repeats and budgets."""

    rmc: tuple[Cleansing, ...]
    dent: Entropy
    dann: tuple[Domains, ...]
    tadv: tuple[Fresh, ...]
    signs: Refusing
    auto: Budget  # of AutoAttack on static networks
    module: Budget  # of AutoAttack on DENT as if it were one
    repeats: int  # sequences of Table 6
    threads: (
        int | None
    )  # None: torch's own choice, and cells then belong to machines with as many cores


def _tiny() -> Setting:
    tuning = Tuning(epochs=1, patience=1, rate=1e-3, batch_size=16)
    domains = partial(dann_mnist, 4, 16, side=8, kernel=3, padding=1)
    return Setting(
        rmc=(Cleansing("digits", 2, 60, 1, PGD(2), unchanged, 16, tuning, PGD(2), 2),),
        dent=Entropy(("digits madry", "digits half"), 32, 16, 32, 1, 0.1, 1, 1, 2, PGD(1)),
        dann=(Domains("digits", 24, 60, DomainTraining(domains, 1, 16), PGD(2), 2),),
        tadv=(Fresh("digits", 24, 2, 2, 2, PGD(2)),),
        signs=Refusing(
            "digits", 100, 20, None, None, Distinguishing(partial(normed, 4, 24, side=8, classes=2), 2, 32), PGD(2),
            CW(5, 1, 1.0, 1.0), 20,
        ),
        auto=Budget(1, 1, 1), module=Budget(1, 1, 1), repeats=2, threads=1,
    )  # fmt: skip


def _small() -> Setting:
    tuning = Tuning(epochs=6, patience=2, rate=2e-3, batch_size=64)
    training = DomainTraining(partial(dann_mnist, 8, 32), 16, 64, Adam(2e-3))
    attack = PGD(15, 0.04)
    return Setting(
        rmc=(Cleansing("mnist", 10, 1500, 1, attack, unchanged, 64, tuning, attack, 3),),
        dent=Entropy(
            ("mnist madry", "mnist trades", "mnist half"), 256, 128, 256, 15, 0.04, 1, 2, 2, PGD(20, 0.04),
            ("the half-adversarial base was once put in the place of TRADES, on which DENT had kept 17 points; both are shown",),
        ),
        dann=(Domains("mnist", 256, 2000, training, attack, 3),),
        tadv=(Fresh("mnist", 200, 3, 3, 4, attack),),
        signs=Refusing(
            "gtsrb10", 4000, 660, 384, 1536, Distinguishing(grained, 6, 64, Adam(5e-3)), PGD(20, 2 / 255), CW(100, 1, 1.0), 100,
            (
                "settings were changed after results: discriminators with dense layers, on 2140 training images, refused 81 to "
                "99 % of ordinary images at a threshold of 1/2; convolutional ones refused 85 % of brighter images, as in the "
                "paper, but 1 % of PGD's points; the present ones look at grain, and were chosen by what they refuse in (a) and "
                "of held-out images",
            ),
        ),
        auto=Budget(15, 2, 60), module=Budget(5, 1, 10), repeats=2, threads=1,
    )  # fmt: skip


def _paper() -> Setting:
    """The authors' own; Table 4 with 41 networks where they have 12."""
    mnist = Cleansing(
        "mnist",
        1000,
        None,
        1,
        PGD(100, 0.01),
        unchanged,
        1024,
        Tuning(rate=2e-4),
        PGD(100, 0.01),
        10,
    )
    cifar = Cleansing(
        "cifar10",
        1000,
        None,
        4,
        PGD(40, 1 / 255),
        Shift(4, mirror=True),
        1024,
        Tuning(),
        PGD(40, 1 / 255),
        10,
    )
    return Setting(
        rmc=(mnist, cifar),
        dent=Entropy(("cifar10 pgd-at", "cifar10 trades", "cifar10 mart"), 1000, 128, 256, 100, 1 / 255, 5, 9, 3, PGD(20, 2 / 255)),
        dann=(
            Domains("mnist", 10_000, None, DomainTraining(), PGD(200, 0.01), 10),
            Domains("cifar10", 10_000, None, cifar_domains(), PGD(100, 1 / 255), 10),
        ),
        tadv=(
            Fresh("mnist", 10_000, 10, 3, 10, PGD(200, 0.01)),
            Fresh("cifar10", 10_000, 10, 3, 10, PGD(100, 1 / 255)),
        ),
        signs=Refusing("gtsrb", None, 10_000, None, None, Distinguishing(), PGD(40, 1 / 255), CW(100, 1, 1.0, search=0), 100),
        auto=Budget(), module=Budget(), repeats=5, threads=None,
    )  # fmt: skip


SETTINGS: Mapping[Scale, Setting] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
