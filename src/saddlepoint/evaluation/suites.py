"""AutoAttack's compositions, made of our parts."""

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
    """The composition of AutoAttack's `standard` version (Croce & Hein 2020): APGD-CE, targeted APGD, targeted FAB, Square.

    Our parts, our referee: rows leave when they fall, points are max-value points, never clean copies. A target that answers with
    too few classes for a ratio of logits is attacked by margins, and no class is targeted twice.
    """
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy)
    return (
        apgd,
        MultiTarget(replace(apgd, name="apgd-t"), targets, targeted_dlr_or_margin),
        MultiTarget(Direct("fab-t", FAB(steps, facet=own_facet)), targets, targeted_margin),
        Direct("square", Square(queries)),
    )


def rand(*, steps: int = 100, draws: int = 20) -> tuple[Adversary, ...]:
    """The composition of AutoAttack's `rand` version: APGD-CE and APGD-DLR on gradients averaged over draws.

    Judge it with `Threat(draws=...)` well above one: a success on a single draw may be luck.
    """
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy, estimator=EoT(draws))
    return apgd, replace(apgd, name="apgd-dlr", loss=dlr_or_margin)


def dlr_or_margin(logits: Tensor, y: Tensor) -> Tensor:
    """`dlr` where the answer has the three classes it needs, else the margin."""
    return (dlr if logits.shape[-1] >= 3 else margin)(logits, y)


def targeted_dlr_or_margin(target: Tensor) -> Loss:
    """`targeted_dlr` where the answer has the four classes it needs, else the targeted margin."""
    return Toward(
        lambda logits, y, t: (targeted_dlr if logits.shape[-1] >= 4 else targeted_margin)(t)(
            logits, y
        ),
        target,
    )
