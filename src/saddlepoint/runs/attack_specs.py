"""Builds the attacks that a specification describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.fab import FAB, nearest_facet, own_facet
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import (
    Loss,
    TargetedLoss,
    cross_entropy,
    dlr,
    margin,
    probability_margin,
    targeted_cross_entropy,
    targeted_dlr,
    targeted_margin,
)
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.square import Square
from saddlepoint.attacks.vmi import VMI
from saddlepoint.evaluation import Adversary, Direct, MultiTarget, Restarts
from saddlepoint.gradients import Backprop, EoT
from saddlepoint.locate import nearest
from saddlepoint.runs.spec import AttackSpec, SpecError

LOSSES: dict[str, Loss] = {
    "ce": cross_entropy,
    "margin": margin,
    "dlr": dlr,
    "pma": probability_margin,
}
TARGETED: dict[str, TargetedLoss] = {
    "ce": targeted_cross_entropy,
    "margin": targeted_margin,
    "dlr": targeted_dlr,
}
KINDS: dict[str, Callable[[AttackSpec], Attack[Any]]] = {
    "fgsm": lambda spec: FGSM(),  # noqa: ARG005
    "pgd": lambda spec: PGD(spec.steps or 40, spec.step_size),
    "apgd": lambda spec: APGD(spec.steps or 100),
    "vmi": lambda spec: VMI(spec.steps or 10),
    "fab": lambda spec: FAB(spec.steps or 100, facet=own_facet if spec.targets else nearest_facet),
    "square": lambda spec: Square(spec.queries or 5000),
    "rays": lambda spec: RayS(spec.queries or 10_000),
    # With fewer steps, pixels on the boundary of the box cannot move away from it.
    "cw": lambda spec: CW(spec.steps or 1000),
    "fmn": lambda spec: FMN(spec.steps or 100),
}
NAMED = {  # the attacks that `--attacks` and `named` know
    "fgsm": AttackSpec(kind="fgsm", loss="ce"),
    "pgd": AttackSpec(kind="pgd", loss="ce"),
    "apgd-ce": AttackSpec(kind="apgd", loss="ce"),
    "apgd-dlr": AttackSpec(kind="apgd", loss="dlr"),
    "apgd-margin": AttackSpec(kind="apgd"),
    "apgd-t": AttackSpec(kind="apgd", loss="dlr", targets=9),
    "vmi": AttackSpec(kind="vmi", loss="ce"),
    "fab": AttackSpec(kind="fab"),
    "fab-t": AttackSpec(kind="fab", targets=9),
    "square": AttackSpec(kind="square"),
    "rays": AttackSpec(kind="rays"),
    "cw": AttackSpec(kind="cw"),
    "fmn": AttackSpec(kind="fmn"),
}


def named(name: str) -> AttackSpec:
    """The attack with this name in the literature, such as `apgd-ce`.

    Raises:
        SpecError: No attack has this name.
    """
    if name not in NAMED:
        raise SpecError(
            f"no attack is called {name!r}.{nearest(name, list(NAMED))} Known: {', '.join(NAMED)}."
        )
    return NAMED[name].model_copy(update={"name": name})


def build(spec: AttackSpec) -> Adversary:
    """The adversary that runs the attack of a specification.

    Raises:
        SpecError: Target classes are requested, but the loss has no targeted form.
    """
    estimator = EoT(spec.draws) if spec.draws > 1 else Backprop()
    direct = Direct(
        spec.name or spec.kind, KINDS[spec.kind](spec), LOSSES[spec.loss], estimator=estimator
    )
    adversary: Adversary = direct
    if spec.targets:
        if spec.loss not in TARGETED:
            raise SpecError(
                f"the loss {spec.loss!r} has no targeted form; use one of {', '.join(TARGETED)}."
            )
        adversary = MultiTarget(direct, spec.targets, TARGETED[spec.loss])
    return Restarts(adversary, spec.restarts) if spec.restarts > 1 else adversary
