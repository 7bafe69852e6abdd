"""The attack suites of AutoAttack, composed of the attacks of this package."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.losses import (
    Loss,
    Toward,
    cross_entropy,
    dlr,
    margin,
    targeted_dlr,
    targeted_margin,
)
from saddlepoint.attacks.square import Square
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.combinators import MultiTarget
from saddlepoint.evaluation.direct import Direct
from saddlepoint.gradients import EoT


def autoattack(*, steps: int = 100, targets: int = 9, queries: int = 5000) -> tuple[Adversary, ...]:
    """The `standard` suite of AutoAttack (Croce & Hein 2020).

    APGD-CE, targeted APGD-DLR, targeted FAB and Square, composed of the attacks of this package.
    An attack that does not succeed returns its point of highest loss, never a clean copy. An
    example is not attacked again once it is misclassified. A model with too few classes for DLR is
    attacked with margins, and no class is targeted twice.

    Args:
        steps: steps of APGD and FAB.
        targets: target classes of the targeted attacks.
        queries: queries of Square.
    """
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy)
    return (
        apgd,
        MultiTarget(replace(apgd, name="apgd-t"), targets, targeted_dlr_or_margin),
        MultiTarget(Direct("fab-t", FAB(steps, facet=own_facet)), targets, targeted_margin),
        Direct("square", Square(queries)),
    )


def rand_suite(*, steps: int = 100, draws: int = 20) -> tuple[Adversary, ...]:
    """The `rand` suite of AutoAttack for randomized defenses: APGD-CE and APGD-DLR with EoT.

    Evaluate it with `Threat(draws=...)` well above one: success on a single draw may be chance.

    Args:
        steps: steps of APGD.
        draws: random draws over which each gradient is averaged.
    """
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy, estimator=EoT(draws))
    return apgd, replace(apgd, name="apgd-dlr", loss=dlr_or_margin)


def dlr_or_margin(logits: Tensor, y: Tensor) -> Tensor:
    """`dlr` if there are at least the three classes that it needs, else the margin."""
    loss = dlr if logits.shape[-1] >= 3 else margin
    return loss(logits, y)


def targeted_dlr_or_margin(target: Tensor) -> Loss:
    """`targeted_dlr` if there are at least the four classes that it needs, else the margin."""
    return Toward(_targeted_dlr_or_margin, target)


def _targeted_dlr_or_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    loss = targeted_dlr if logits.shape[-1] >= 4 else targeted_margin
    return loss(target)(logits, y)
