"""The nine defenses as the experiments build them: the paper's settings, with lengths in radii of the attacker's set.

On CIFAR-10 at 8/255 these are the settings of the paper to the digit; on other data a defense moves an image as far, compared with
the attacker, as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Radii
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Direct
from saddlepoint.papers.adaptive.nets import RESNET, ROBUST, STANDARD, TRADED
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.runner import Images
from saddlepoint.zoo.adaptive import (
    ATLD,
    SOAP,
    SODEF,
    AdaptiveDenoising,
    AIDPurifier,
    AntiAdversary,
    ClosedLoopControl,
    ContrastiveReversal,
    Discriminator,
    HedgeDefense,
    ScoreNet,
)
from saddlepoint.zoo.adaptive.atld import LatentTraining, LogitDiscriminator
from saddlepoint.zoo.adaptive.closed_loop import PrincipalComponents
from saddlepoint.zoo.adaptive.layers import Features
from saddlepoint.zoo.adaptive.learning import Phase, seeded
from saddlepoint.zoo.adaptive.sodef import RungeKutta, StableODE, StableTraining


@dataclass(frozen=True)
class Base:
    """What a defense is put on: a static net, images to fit on, the attacker's set."""

    net: nn.Module
    train: Images
    space: Ball
    seed: int
    data: str  # the name of the images

    @property
    def radius(self) -> float:
        return self.space.radius


@dataclass(frozen=True)
class Fit:
    """How auxiliary networks are made at a scale; the defaults are the paper's."""

    images: int | None = None  # of the training set; None: all
    stable: StableTraining = field(default_factory=StableTraining)
    embedded: tuple[int, int] = (64, 2048)  # width of SODEF's state, and of the layer before it
    steered: tuple[str, ...] = (
        "0.0",
        "0",
        "1",
        "2",
        "3",
    )  # layers: the normalized image, the stem, three stages
    components: PrincipalComponents = field(default_factory=PrincipalComponents)
    judged: tuple[str, ...] = (
        "net.0",
        "net.2",
    )  # layers that AID's discriminator sees: the stem and the second group
    judges: int = 1024  # width of that discriminator
    contrast: Phase = field(default_factory=lambda: Phase(epochs=200, batch_size=128, rate=1e-4))
    hedging: int = 20  # steps of the hedge defense
    purifying: int = 10  # of AID
    consistency: int = 5  # of SOAP, for each radius
    reversal: tuple[int, int] = (40, 4)  # steps and views
    latent: Phase = field(
        default_factory=lambda: Phase(epochs=200, batch_size=128, rate=0.1, milestones=(60, 90))
    )
    latent_judge: tuple[int, int] = (28, 5)  # depth and widening of ATLD's discriminator
    score: tuple[int, int] = (128, 6)  # width and blocks of the score network
    scored: Phase = field(default_factory=lambda: Phase(epochs=500, batch_size=128, rate=1e-4))
    denoising: tuple[int, int] = (10, 10)  # steps and runs
    consistent: Phase = field(
        default_factory=lambda: Phase(epochs=200, batch_size=128, rate=1e-3)
    )  # SOAP's joint training

    @property
    def told(self) -> str:
        """What differs from scale to scale, in words."""
        count = "all" if self.images is None else f"the first {self.images}"
        return (
            f"defenses are fitted on {count} training images; steps: hedge {self.hedging}, AID {self.purifying}, SOAP "
            f"{self.consistency} per radius, contrastive reversal {self.reversal[0]} with {self.reversal[1]} views, adaptive "
            f"denoising {self.denoising[0]} with {self.denoising[1]} runs (the paper: 20, 10, 5, 40 with 4, 10 with 10)"
        )


def sodef(base: Base, fit: Fit) -> SODEF:
    """Integrated in equal steps, row by row; the released solver sizes its steps by the whole batch."""
    x, y = base.train
    width, hidden = fit.embedded
    with seeded(base.seed):
        body = StableODE.over(
            Features(base.net).of(x[:1]).shape[1], 10, width=width, hidden=hidden
        ).to(x.device)
    return SODEF(base.net, body, integrator=RungeKutta()).fit(
        x, y, training=fit.stable, seed=base.seed
    )


def closed_loop(base: Base, fit: Fit) -> ClosedLoopControl:
    return ClosedLoopControl(base.net, fit.steered).fit(
        *base.train, learner=fit.components, seed=base.seed
    )


def hedge(base: Base, fit: Fit) -> HedgeDefense:
    return HedgeDefense(base.net, radius=base.radius, steps=fit.hedging, step_size=base.radius / 2)


def anti_adversary(base: Base, fit: Fit) -> AntiAdversary:  # noqa: ARG001
    return AntiAdversary(base.net)


def soap(base: Base, fit: Fit) -> SOAP:
    radii = tuple(number * base.radius / 2 for number in range(11))
    made = SOAP(base.net, radii=radii, steps=fit.consistency, step_size=base.radius / 2)
    phase = fit.consistent
    x, y = base.train
    return made.fit_jointly(
        x,
        y,
        epochs=phase.epochs,
        batch_size=phase.batch_size,
        learning_rate=phase.rate,
        seed=base.seed,
    )


def atld(base: Base, fit: Fit) -> ATLD:
    depth, widen = fit.latent_judge
    with seeded(base.seed):
        judge = LogitDiscriminator(10, depth=depth, widen=widen).to(base.train.x.device)
    made = ATLD(base.net, judge, step_size=base.radius, radius=base.radius)
    return made.fit(
        *base.train, training=LatentTraining(fit.latent, radius=base.radius), seed=base.seed
    )


def aid(base: Base, fit: Fit) -> AIDPurifier:
    """Within the attacker's radius, as the released settings for CIFAR-10 and SVHN are, and within two of them on CIFAR-100."""
    x, y = base.train
    reach = base.radius * (2 if base.data == "cifar100" else 1)
    judge = Discriminator.on(base.net, fit.judged, x[:2], width=fit.judges, seed=base.seed)
    shown = Direct("pgd", PGD(steps=10, step_size=Radii(1 / 8)), loss=cross_entropy)
    made = AIDPurifier(base.net, judge, radius=reach, steps=fit.purifying)
    return made.fit(x, y, adversary=shown, space=base.space, seed=base.seed)


def contrastive(base: Base, fit: Fit) -> ContrastiveReversal:
    steps, views = fit.reversal
    made = ContrastiveReversal(
        base.net,
        steps=steps,
        views=views,
        step_size=base.radius / 4,
        radius=2 * base.radius,
        random_start=False,
    )
    return made.fit(base.train.x, phase=fit.contrast, seed=base.seed)


def denoising(base: Base, fit: Fit) -> AdaptiveDenoising:
    x = base.train.x
    phase = fit.scored
    (steps, runs) = fit.denoising
    with seeded(base.seed):
        score = ScoreNet(x.shape[1], width=fit.score[0], blocks=fit.score[1]).to(x.device).eval()
    made = AdaptiveDenoising(base.net, score, steps=steps, runs=runs)
    return made.fit(
        x,
        epochs=phase.epochs,
        batch_size=phase.batch_size,
        learning_rate=phase.rate,
        seed=base.seed,
    )


@dataclass(frozen=True)
class Built:
    """How a defense of the table comes about."""

    base: str  # name of the static net's recipe
    make: Callable[[Base, Fit], Defense]


DEFENSES: Mapping[str, Built] = {
    "SODEF": Built(TRADED, sodef),
    "ClosedLoopControl": Built(RESNET, closed_loop),
    "HedgeDefense": Built(ROBUST, hedge),
    "AntiAdversary": Built(ROBUST, anti_adversary),
    "SOAP": Built(STANDARD, soap),
    "ATLD": Built(STANDARD, atld),
    "AIDPurifier": Built(ROBUST, aid),
    "ContrastiveReversal": Built(ROBUST, contrastive),
    "AdaptiveDenoising": Built(STANDARD, denoising),
}
ON_ROBUST = (TRADED, ROBUST)  # recipes whose nets are robust before anything is added

_QUICK = Phase(epochs=2, batch_size=64, rate=2e-3)
FITS: Mapping[Scale, Fit] = {
    "tiny": Fit(
        images=200, stable=StableTraining(_QUICK, Phase(1, 100, 1e-2), _QUICK), embedded=(12, 24),
        components=PrincipalComponents(samples=60), judged=("2", "5"), judges=16, contrast=_QUICK, hedging=4, purifying=3,
        consistency=2, reversal=(2, 2), latent=Phase(2, 64, 1e-2), latent_judge=(10, 1), score=(4, 1), scored=_QUICK,
        denoising=(2, 2), consistent=_QUICK,
    ),
    "small": Fit(
        images=3000, stable=StableTraining(settle=Phase(epochs=3, batch_size=50, rate=1e-2)), embedded=(32, 256),
        components=PrincipalComponents(samples=250), judged=("2", "5"), judges=64, contrast=Phase(5, 128, 1e-3), reversal=(10, 2),
        latent=Phase(8, 64, 2e-2, milestones=(5, 7)), latent_judge=(10, 1), score=(8, 1), scored=Phase(4, 64, 2e-3),
        denoising=(5, 2), consistent=Phase(5, 64, 1e-3),
    ),
    "paper": Fit(),
}  # fmt: skip
