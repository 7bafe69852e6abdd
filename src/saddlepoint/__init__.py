"""How robust is a dynamic model, really? Adversarial evaluation as a game between attacker and defender.

Names are imported when they are first used, so that `saddlepoint --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.attack.aim import expected, hardest, last, loss_of_mean, mean_of_losses
    from saddlepoint.attack.apgd import APGD
    from saddlepoint.attack.cw import CW
    from saddlepoint.attack.fab import FAB
    from saddlepoint.attack.fmn import FMN
    from saddlepoint.attack.loss import (
        cross_entropy,
        dlr,
        margin,
        probability_margin,
        saturated,
        targeted_dlr,
        targeted_margin,
    )
    from saddlepoint.attack.pgd import FGSM, PGD
    from saddlepoint.attack.rays import RayS
    from saddlepoint.attack.space import L1, L2, Ball, Linf
    from saddlepoint.attack.square import Square
    from saddlepoint.attack.vmi import VMI
    from saddlepoint.auditing import Audit, autoattack, rand
    from saddlepoint.data import load_data
    from saddlepoint.defense import BlackBox, Context, Defense, Plain, Trace, View
    from saddlepoint.game import (
        Cascade,
        Direct,
        JointEquilibrium,
        MultiTarget,
        Outcomes,
        Restarts,
        Threat,
        Transfer,
        evaluate,
        play,
    )
    from saddlepoint.gradients import (
        BPDA,
        SPSA,
        Backprop,
        Checkpointed,
        EoT,
        Exact,
        FixedCoins,
        Implicit,
        Phantom,
        SharedInverse,
        SimultaneousAdjoint,
    )
    from saddlepoint.run import audit

_HOME = {
    "attack.aim": ("expected", "hardest", "last", "loss_of_mean", "mean_of_losses"),
    "attack.apgd": ("APGD",),
    "attack.cw": ("CW",),
    "attack.fab": ("FAB",),
    "attack.fmn": ("FMN",),
    "attack.loss": (
        "cross_entropy", "dlr", "margin", "probability_margin", "saturated", "targeted_dlr", "targeted_margin",
    ),
    "attack.pgd": ("FGSM", "PGD"),
    "attack.rays": ("RayS",),
    "attack.space": ("L1", "L2", "Ball", "Linf"),
    "attack.square": ("Square",),
    "attack.vmi": ("VMI",),
    "auditing": ("Audit", "autoattack", "rand"),
    "data": ("load_data",),
    "defense": ("BlackBox", "Context", "Defense", "Plain", "Trace", "View"),
    "game": (
        "Cascade", "Direct", "JointEquilibrium", "MultiTarget", "Outcomes", "Restarts", "Threat", "Transfer", "evaluate", "play",
    ),
    "gradients": (
        "BPDA", "SPSA", "Backprop", "Checkpointed", "EoT", "Exact", "FixedCoins",
        "Implicit", "Phantom", "SharedInverse", "SimultaneousAdjoint",
    ),
    "run": ("audit",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "APGD",
    "BPDA",
    "CW",
    "FAB",
    "FGSM",
    "FMN",
    "L1",
    "L2",
    "PGD",
    "SPSA",
    "VMI",
    "Audit",
    "Backprop",
    "Ball",
    "BlackBox",
    "Cascade",
    "Checkpointed",
    "Context",
    "Defense",
    "Direct",
    "EoT",
    "Exact",
    "FixedCoins",
    "Implicit",
    "JointEquilibrium",
    "Linf",
    "MultiTarget",
    "Outcomes",
    "Phantom",
    "Plain",
    "RayS",
    "Restarts",
    "SharedInverse",
    "SimultaneousAdjoint",
    "Square",
    "Threat",
    "Trace",
    "Transfer",
    "View",
    "audit",
    "autoattack",
    "cross_entropy",
    "dlr",
    "evaluate",
    "expected",
    "hardest",
    "last",
    "load_data",
    "loss_of_mean",
    "margin",
    "mean_of_losses",
    "play",
    "probability_margin",
    "rand",
    "saturated",
    "targeted_dlr",
    "targeted_margin",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'saddlepoint' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
