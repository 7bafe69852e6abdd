"""AutoAttack's compositions, made of our parts."""

from __future__ import annotations

from dataclasses import replace

from saddlepoint.attack.apgd import APGD
from saddlepoint.attack.fab import FAB, own_facet
from saddlepoint.attack.loss import Loss, TargetedLoss, cross_entropy, dlr, margin, targeted_dlr, targeted_margin
from saddlepoint.attack.square import Square
from saddlepoint.game.adversary import Adversary, Direct, MultiTarget
from saddlepoint.gradients import EoT


def autoattack(*, classes: int = 10, steps: int = 100, targets: int = 9, queries: int = 5000) -> tuple[Adversary, ...]:
    """The composition of AutoAttack's `standard` version (Croce & Hein 2020): APGD-CE, targeted APGD, targeted FAB, Square.

    Our parts, our referee: rows leave when they fall, points are max-value points, never clean copies.
    """
    targeted = ratios(classes)[1]
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy)
    return (
        apgd,
        MultiTarget(replace(apgd, name="apgd-t"), targets, targeted),
        MultiTarget(Direct("fab-t", FAB(steps, facet=own_facet)), targets, targeted_margin),
        Direct("square", Square(queries)),
    )


def rand(*, classes: int = 10, steps: int = 100, draws: int = 20) -> tuple[Adversary, ...]:
    """The composition of AutoAttack's `rand` version: APGD-CE and APGD-DLR on gradients averaged over draws.

    Judge it with `Threat(draws=...)` well above one: a success on a single draw may be luck.
    """
    apgd = Direct("apgd-ce", APGD(steps), loss=cross_entropy, estimator=EoT(draws))
    return apgd, replace(apgd, name="apgd-dlr", loss=ratios(classes)[0])


def ratios(classes: int) -> tuple[Loss, TargetedLoss]:
    """Difference-of-logits ratios where there are classes enough for them, else the margin itself."""
    return (dlr if classes >= 3 else margin), (targeted_dlr if classes >= 4 else targeted_margin)
