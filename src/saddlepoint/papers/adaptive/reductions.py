"""Which hyper-parameters of a defense and of its attack are below the paper's at a scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from saddlepoint.papers.adaptive.fitting import FitSetting
from saddlepoint.papers.adaptive.scales import AttackBudgets

NONE = "none"
LABEL = "reduced hyper-parameters"


class _Scale(NamedTuple):
    fit: FitSetting
    budgets: AttackBudgets


_Read = Callable[[_Scale], int | None]  # None: all
_PAPER = _Scale(FitSetting(), AttackBudgets())
_APGD: tuple[tuple[str, _Read], ...] = (
    ("APGD steps", lambda s: s.budgets.apgd_steps),
    ("targets", lambda s: s.budgets.targets),
)
_IMAGES: tuple[tuple[str, _Read], ...] = (("training images", lambda s: s.fit.images),)
_READ: Mapping[str, tuple[tuple[str, _Read], ...]] = {
    "SODEF": (
        *_IMAGES,
        ("state width", lambda s: s.fit.sodef_widths[0]),
        ("hidden width", lambda s: s.fit.sodef_widths[1]),
        ("epochs of the stability training", lambda s: s.fit.sodef_training.settle.epochs),
        ("APGD steps", lambda s: s.budgets.apgd_steps),
        ("targets", lambda s: min(s.budgets.targets, 3)),
    ),
    "ClosedLoopControl": (
        ("images of the bases", lambda s: s.fit.components.samples),
        ("PGD steps", lambda s: s.budgets.pgd_steps),
        ("APGD steps", lambda s: s.budgets.apgd_steps),
    ),
    "HedgeDefense": (
        ("defense steps", lambda s: s.fit.hedge_steps),
        ("attack steps", lambda s: s.budgets.hedge.steps),
        ("targets", lambda s: s.budgets.hedge.targets),
        ("EoT draws", lambda s: s.budgets.hedge.draws),
    ),
    "AntiAdversary": (("RayS queries", lambda s: s.budgets.rays_queries),),
    "SOAP": (
        *_IMAGES,
        ("training epochs", lambda s: s.fit.soap_training.epochs),
        ("defense steps", lambda s: s.fit.soap_steps),
        ("attack steps", lambda s: s.budgets.soap_steps),
    ),
    "ATLD": (
        *_IMAGES,
        ("discriminator depth", lambda s: s.fit.atld_discriminator[0]),
        ("discriminator widening", lambda s: s.fit.atld_discriminator[1]),
        ("training epochs of the classifier", lambda s: _latent_epochs(s.fit)),
        ("training epochs of the discriminator", lambda s: s.fit.atld_training.epochs),
        *_APGD,
        ("restarts", lambda s: s.budgets.atld_restarts),
    ),
    "AIDPurifier": (
        *_IMAGES,
        ("discriminator layers", lambda s: len(s.fit.aid_layers)),
        ("discriminator layers switched off", lambda s: len(s.fit.aid_off)),
        ("discriminator width", lambda s: s.fit.aid_width),
        ("defense steps", lambda s: s.fit.aid_steps),
        *_APGD,
    ),
    "ContrastiveReversal": (
        *_IMAGES,
        ("training epochs", lambda s: s.fit.reversal_training.epochs),
        ("defense steps", lambda s: s.fit.reversal[0]),
        ("views", lambda s: s.fit.reversal[1]),
        ("attack steps", lambda s: s.budgets.contrastive.steps),
        ("EoT draws", lambda s: s.budgets.contrastive.draws),
        ("restarts", lambda s: s.budgets.contrastive.restarts),
    ),
    "AdaptiveDenoising": (
        *_IMAGES,
        ("score network width", lambda s: s.fit.score_net[0]),
        ("score network blocks", lambda s: s.fit.score_net[1]),
        ("training epochs", lambda s: s.fit.score_training.epochs),
        ("defense steps", lambda s: s.fit.denoising[0]),
        ("runs", lambda s: s.fit.denoising[1]),
        ("attack steps", lambda s: s.budgets.denoising.steps),
        ("EoT draws", lambda s: s.budgets.denoising.draws),
    ),
}


def reductions(name: str, fit: FitSetting, budgets: AttackBudgets) -> str:
    """Describe what is reduced, for example `RayS queries 500 of 10000`.

    Args:
        name: Class name of one of the nine defenses.
        fit: How the defenses are fitted.
        budgets: Budgets of the attacks.

    Returns:
        The differences from the paper, or "none".
    """
    scale = _Scale(fit, budgets)
    parts = []
    for label, read in _READ[name]:
        ours, paper = (_format(read(one)) for one in (scale, _PAPER))
        if ours != paper:
            parts.append(f"{label} {ours} of {paper}")
    return ", ".join(parts) or NONE


def _latent_epochs(fit: FitSetting) -> int:
    """Epochs of latent-distribution training, which trains the classifier of ATLD."""
    return fit.atld_training.epochs if fit.atld_training.rate else 0


def _format(number: int | None) -> str:
    return "all" if number is None else str(number)
