"""The nine defenses with the paper's settings, their lengths relative to the attacker's radius.

On CIFAR-10 at radius 8/255 the settings equal the paper's exactly. On other data, the ratio between
the lengths of the defense and the attacker's radius is the same as there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Radii
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Direct
from saddlepoint.papers.adaptive.fitting import FitSetting
from saddlepoint.papers.adaptive.nets import PGD_AT, RESNET, STANDARD, TRADES_NET
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
from saddlepoint.zoo.adaptive.feature_extraction import Features
from saddlepoint.zoo.adaptive.fitting import seeded
from saddlepoint.zoo.adaptive.sodef import RungeKutta, StableODE

HIDDEN_NEGATIVES = 50  # as many as the images of a batch in the paper


@dataclass(frozen=True)
class StaticModel:
    """A static network and what is needed to fit a defense on it."""

    net: nn.Module
    train: Images  # images to fit on
    space: Ball  # the attacker's allowed perturbations
    seed: int
    data: str  # name of the dataset
    basis: Images  # images to fit the bases of closed-loop control on

    @property
    def radius(self) -> float:
        """The attacker's radius."""
        return self.space.radius


def sodef(base: StaticModel, fit: FitSetting) -> SODEF:
    """Fit SODEF with a solver of equal steps.

    Each example is integrated independently; the released solver chooses its steps for the whole
    batch.
    """
    x, y = base.train
    width, hidden = fit.sodef_widths
    features = Features(base.net).of(x[:1]).shape[1]
    with seeded(base.seed):
        body = StableODE.over(features, 10, width=width, hidden=hidden).to(x.device)
    defense = SODEF(base.net, body, integrator=RungeKutta())
    return defense.fit(x, y, training=fit.sodef_training, seed=base.seed)


def closed_loop(base: StaticModel, fit: FitSetting) -> ClosedLoopControl:
    """Fit closed-loop control."""
    x, y = base.basis
    defense = ClosedLoopControl(base.net, fit.controlled_layers)
    return defense.fit(x, y, learner=fit.components, seed=base.seed)


def hedge(base: StaticModel, fit: FitSetting) -> HedgeDefense:
    """Make the hedge defense, which has nothing to fit."""
    return HedgeDefense(
        base.net, radius=base.radius, steps=fit.hedge_steps, step_size=base.radius / 2
    )


def anti_adversary(base: StaticModel, fit: FitSetting) -> AntiAdversary:  # noqa: ARG001
    """Make the anti-adversary defense, which has nothing to fit."""
    return AntiAdversary(base.net)


def soap(base: StaticModel, fit: FitSetting) -> SOAP:
    """Fit SOAP jointly with its self-supervised task; it tries eleven radii from zero."""
    x, y = base.train
    radii = tuple(number * base.radius / 2 for number in range(11))
    defense = SOAP(base.net, radii=radii, steps=fit.soap_steps, step_size=base.radius / 2)
    return defense.fit_jointly(
        x,
        y,
        epochs=fit.soap_training.epochs,
        batch_size=fit.soap_training.batch_size,
        learning_rate=fit.soap_training.rate,
        seed=base.seed,
    )


def atld(base: StaticModel, fit: FitSetting) -> ATLD:
    """Fit ATLD with its discriminator of logits."""
    x, y = base.train
    depth, widen = fit.atld_discriminator
    with seeded(base.seed):
        discriminator = LogitDiscriminator(10, depth=depth, widen=widen).to(x.device)
    defense = ATLD(base.net, discriminator, step_size=base.radius, radius=base.radius)
    training = LatentTraining(fit.atld_training, radius=base.radius)
    return defense.fit(x, y, training=training, seed=base.seed)


def aid(base: StaticModel, fit: FitSetting) -> AIDPurifier:
    """Fit AID-purifier.

    It purifies within the attacker's radius, as the released settings for CIFAR-10 and SVHN do, and
    within twice the radius on CIFAR-100. On SVHN the released discriminator has other layers and is
    less deep.
    """
    x, y = base.train
    radius = base.radius * (2 if base.data == "cifar100" else 1)
    svhn = base.data == "svhn"
    discriminator = Discriminator.on(
        base.net,
        fit.aid_layers,
        x[:2],
        off=fit.aid_off_svhn if svhn else fit.aid_off,
        width=fit.aid_width,
        before=0 if svhn else 1,
        after=2 if svhn else 3,
        seed=base.seed,
    )
    adversary = Direct("pgd", PGD(steps=10, step_size=Radii(1 / 8)), loss=cross_entropy)
    defense = AIDPurifier(base.net, discriminator, radius=radius, steps=fit.aid_steps)
    return defense.fit(x, y, adversary=adversary, space=base.space, seed=base.seed)


def contrastive(base: StaticModel, fit: FitSetting) -> ContrastiveReversal:
    """Fit contrastive reversal with the other images of the batch as negatives."""
    return _reversal(base, fit, None)


def contrastive_with_hidden_negatives(base: StaticModel, fit: FitSetting) -> ContrastiveReversal:
    """Fit contrastive reversal with training images as negatives, which no attacker changes (B.8).

    Each image has its own augmentations, so that images are independent.
    """
    return _reversal(base, fit, base.train.x[:HIDDEN_NEGATIVES])


def _reversal(base: StaticModel, fit: FitSetting, negatives: Tensor | None) -> ContrastiveReversal:
    steps, views = fit.reversal
    defense = ContrastiveReversal(
        base.net,
        negatives=negatives,
        shared_augmentation=negatives is None,
        steps=steps,
        views=views,
        step_size=base.radius / 4,
        radius=2 * base.radius,
        random_start=False,
    )
    return defense.fit(base.train.x, phase=fit.reversal_training, seed=base.seed)


def denoising(base: StaticModel, fit: FitSetting) -> AdaptiveDenoising:
    """Fit adaptive denoising with its score network."""
    x = base.train.x
    steps, runs = fit.denoising
    width, blocks = fit.score_net
    with seeded(base.seed):
        score = ScoreNet(x.shape[1], width=width, blocks=blocks).to(x.device).eval()
    defense = AdaptiveDenoising(base.net, score, steps=steps, runs=runs)
    return defense.fit(
        x,
        epochs=fit.score_training.epochs,
        batch_size=fit.score_training.batch_size,
        learning_rate=fit.score_training.rate,
        seed=base.seed,
    )


@dataclass(frozen=True)
class DefenseRecipe:
    """How a defense is made."""

    base: str  # name of the recipe of its static network
    make: Callable[[StaticModel, FitSetting], Defense]


DEFENSES: Mapping[str, DefenseRecipe] = {
    "SODEF": DefenseRecipe(TRADES_NET, sodef),
    "ClosedLoopControl": DefenseRecipe(RESNET, closed_loop),
    "HedgeDefense": DefenseRecipe(PGD_AT, hedge),
    "AntiAdversary": DefenseRecipe(PGD_AT, anti_adversary),
    "SOAP": DefenseRecipe(STANDARD, soap),
    "ATLD": DefenseRecipe(STANDARD, atld),
    "AIDPurifier": DefenseRecipe(PGD_AT, aid),
    "ContrastiveReversal": DefenseRecipe(PGD_AT, contrastive),
    "AdaptiveDenoising": DefenseRecipe(STANDARD, denoising),
}
ROBUST_BASES = (TRADES_NET, PGD_AT)  # recipes of adversarially trained static networks
