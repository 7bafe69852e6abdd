"""How robust is a dynamic model, really? Adversarial evaluation as a game between attacker and defender.

Names are imported when they are first used, so that `saddlepoint --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.attack.aim import Gate, expected, hardest, last, loss_of_mean, mean_of_losses, mixture
    from saddlepoint.attack.apgd import APGD
    from saddlepoint.attack.cw import CW
    from saddlepoint.attack.fab import FAB
    from saddlepoint.attack.fmn import FMN
    from saddlepoint.attack.lafeat import CosineAscent
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
    from saddlepoint.attack.pool import AverageLoss, LeastLoss
    from saddlepoint.attack.rays import RayS
    from saddlepoint.attack.space import L1, L2, Ball, Linf, Radii, arbitrary
    from saddlepoint.attack.square import Square
    from saddlepoint.attack.vmi import VMI
    from saddlepoint.auditing import Audit
    from saddlepoint.auditing.probe import probe
    from saddlepoint.auditing.smoothing import smoothing_certificate
    from saddlepoint.auditing.traits import Trait, Traits
    from saddlepoint.data import load_data
    from saddlepoint.defense import BlackBox, Confident, Context, Defense, LowEntropy, MultiExit, Plain, Trace, View
    from saddlepoint.game import (
        ByLabel,
        Cascade,
        Control,
        Direct,
        FixedPoint,
        GreedyModelSpace,
        JointEquilibrium,
        MultiTarget,
        Onward,
        Outcomes,
        Peak,
        Pursuit,
        Restarts,
        Retrained,
        Searched,
        Skip,
        Threat,
        Transfer,
        autoattack,
        evaluate,
        play,
        rand,
    )
    from saddlepoint.game.aimer import NEED, aimer
    from saddlepoint.game.exits import exit_game
    from saddlepoint.game.partial import MaxAverage, lafeat, max_average, partial
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
        Smoothed,
    )
    from saddlepoint.run import audit
    from saddlepoint.run.games.record import GameRecord
    from saddlepoint.selftesting import SelfTest, selftest
    from saddlepoint.zoo.multi_exit import attach_exits

_HOME = {
    "attack.aim": ("Gate", "expected", "hardest", "last", "loss_of_mean", "mean_of_losses", "mixture"),
    "attack.apgd": ("APGD",),
    "attack.cw": ("CW",),
    "attack.fab": ("FAB",),
    "attack.fmn": ("FMN",),
    "attack.lafeat": ("CosineAscent",),
    "attack.loss": (
        "cross_entropy", "dlr", "margin", "probability_margin", "saturated", "targeted_dlr", "targeted_margin",
    ),
    "attack.pgd": ("FGSM", "PGD"),
    "attack.pool": ("AverageLoss", "LeastLoss"),
    "attack.rays": ("RayS",),
    "attack.space": ("L1", "L2", "Ball", "Linf", "Radii", "arbitrary"),
    "attack.square": ("Square",),
    "attack.vmi": ("VMI",),
    "auditing": ("Audit",),
    "auditing.probe": ("probe",),
    "auditing.smoothing": ("smoothing_certificate",),
    "auditing.traits": ("Trait", "Traits"),
    "data": ("load_data",),
    "defense": ("BlackBox", "Confident", "Context", "Defense", "LowEntropy", "MultiExit", "Plain", "Trace", "View"),
    "game": (
        "ByLabel", "Cascade", "Control", "Direct", "FixedPoint", "GreedyModelSpace", "JointEquilibrium",
        "MultiTarget", "Onward", "Outcomes", "Peak", "Pursuit", "Restarts", "Retrained", "Searched", "Skip", "Threat", "Transfer",
        "autoattack", "evaluate", "play", "rand",
    ),
    "game.aimer": ("NEED", "aimer"),
    "game.exits": ("exit_game",),
    "game.partial": ("MaxAverage", "lafeat", "max_average", "partial"),
    "gradients": (
        "BPDA", "SPSA", "Backprop", "Checkpointed", "EoT", "Exact", "FixedCoins",
        "Implicit", "Phantom", "SharedInverse", "SimultaneousAdjoint", "Smoothed",
    ),
    "run": ("audit",),
    "run.games.record": ("GameRecord",),
    "selftesting": ("SelfTest", "selftest"),
    "zoo.multi_exit": ("attach_exits",),
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
    "NEED",
    "PGD",
    "SPSA",
    "VMI",
    "Audit",
    "AverageLoss",
    "Backprop",
    "Ball",
    "BlackBox",
    "ByLabel",
    "Cascade",
    "Checkpointed",
    "Confident",
    "Context",
    "Control",
    "CosineAscent",
    "Defense",
    "Direct",
    "EoT",
    "Exact",
    "FixedCoins",
    "FixedPoint",
    "GameRecord",
    "Gate",
    "GreedyModelSpace",
    "Implicit",
    "JointEquilibrium",
    "LeastLoss",
    "Linf",
    "LowEntropy",
    "MaxAverage",
    "MultiExit",
    "MultiTarget",
    "Onward",
    "Outcomes",
    "Peak",
    "Phantom",
    "Plain",
    "Pursuit",
    "Radii",
    "RayS",
    "Restarts",
    "Retrained",
    "Searched",
    "SelfTest",
    "SharedInverse",
    "SimultaneousAdjoint",
    "Skip",
    "Smoothed",
    "Square",
    "Threat",
    "Trace",
    "Trait",
    "Traits",
    "Transfer",
    "View",
    "aimer",
    "arbitrary",
    "attach_exits",
    "audit",
    "autoattack",
    "cross_entropy",
    "dlr",
    "evaluate",
    "exit_game",
    "expected",
    "hardest",
    "lafeat",
    "last",
    "load_data",
    "loss_of_mean",
    "margin",
    "max_average",
    "mean_of_losses",
    "mixture",
    "partial",
    "play",
    "probability_margin",
    "probe",
    "rand",
    "saturated",
    "selftest",
    "smoothing_certificate",
    "targeted_dlr",
    "targeted_margin",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'saddlepoint' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
