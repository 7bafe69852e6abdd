"""How robust is a dynamic model, really? Adversarial evaluation as a game between attacker and defender.

Names are imported when they are first used, so that `saddlepoint --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.attacks.aims import (
        Gate,
        expected,
        last,
        loss_of_mean,
        max_over_views,
        mean_of_losses,
        mixture,
    )
    from saddlepoint.attacks.apgd import APGD
    from saddlepoint.attacks.cw import CW
    from saddlepoint.attacks.ensemble import AverageLoss, MinLoss
    from saddlepoint.attacks.fab import FAB
    from saddlepoint.attacks.fmn import FMN
    from saddlepoint.attacks.lafeat import CosineAscent
    from saddlepoint.attacks.losses import (
        cross_entropy,
        dlr,
        margin,
        probability_margin,
        saturated,
        targeted_dlr,
        targeted_margin,
    )
    from saddlepoint.attacks.pgd import FGSM, PGD
    from saddlepoint.attacks.rays import RayS
    from saddlepoint.attacks.spaces import L1, L2, Ball, Linf, Radii, unbounded_ball
    from saddlepoint.attacks.square import Square
    from saddlepoint.attacks.vmi import VMI
    from saddlepoint.audits import Audit
    from saddlepoint.audits.diagnostics.smoothing import smoothing_certificate
    from saddlepoint.audits.probes.probe import probe
    from saddlepoint.audits.probes.traits import Trait, Traits
    from saddlepoint.data import load_data
    from saddlepoint.defenses import (
        BlackBox,
        Confident,
        Context,
        Defense,
        LowEntropy,
        MultiExit,
        Plain,
        Trace,
        View,
    )
    from saddlepoint.evaluation import (
        BatchControl,
        Cascade,
        Direct,
        Escalate,
        FixedPoint,
        GreedyModelSpace,
        JointEquilibrium,
        MaxLossPoint,
        MultiTarget,
        Outcomes,
        Restarts,
        RetrainedEnsemble,
        Skip,
        SortedByLabel,
        Threat,
        Transfer,
        WarmStart,
        WorstCaseOrder,
        autoattack,
        evaluate,
        play,
        rand_suite,
    )
    from saddlepoint.games.aimer import aimer
    from saddlepoint.games.exit_adversaries import MaxAverage
    from saddlepoint.games.exit_attacks import lafeat, max_average, partial_attack
    from saddlepoint.games.exit_game import exit_game
    from saddlepoint.games.need import NEED
    from saddlepoint.games.runs.record import GameRecord
    from saddlepoint.gradients import (
        BPDA,
        SPSA,
        Backprop,
        Checkpointed,
        EoT,
        Exact,
        FixedRandomness,
        Implicit,
        Phantom,
        SharedInverse,
        SimultaneousAdjoint,
        Smoothed,
    )
    from saddlepoint.runs import audit
    from saddlepoint.selftests import SelfTest, selftest
    from saddlepoint.zoo.multi_exit import attach_exits

_HOME = {
    "attacks.aims": ("Gate", "expected", "max_over_views", "last", "loss_of_mean", "mean_of_losses", "mixture"),
    "attacks.apgd": ("APGD",),
    "attacks.cw": ("CW",),
    "attacks.fab": ("FAB",),
    "attacks.fmn": ("FMN",),
    "attacks.lafeat": ("CosineAscent",),
    "attacks.losses": (
        "cross_entropy", "dlr", "margin", "probability_margin", "saturated", "targeted_dlr", "targeted_margin",
    ),
    "attacks.pgd": ("FGSM", "PGD"),
    "attacks.ensemble": ("AverageLoss", "MinLoss"),
    "attacks.rays": ("RayS",),
    "attacks.spaces": ("L1", "L2", "Ball", "Linf", "Radii", "unbounded_ball"),
    "attacks.square": ("Square",),
    "attacks.vmi": ("VMI",),
    "audits": ("Audit",),
    "audits.probes.probe": ("probe",),
    "audits.diagnostics.smoothing": ("smoothing_certificate",),
    "audits.probes.traits": ("Trait", "Traits"),
    "data": ("load_data",),
    "defenses": ("BlackBox", "Confident", "Context", "Defense", "LowEntropy", "MultiExit", "Plain", "Trace", "View"),
    "evaluation": (
        "SortedByLabel", "Cascade", "BatchControl", "Direct", "FixedPoint", "GreedyModelSpace", "JointEquilibrium",
        "MultiTarget", "WarmStart", "Outcomes", "MaxLossPoint", "Escalate", "Restarts", "RetrainedEnsemble", "WorstCaseOrder", "Skip", "Threat", "Transfer",
        "autoattack", "evaluate", "play", "rand_suite",
    ),
    "games.aimer": ("aimer",),
    "games.exit_adversaries": ("MaxAverage",),
    "games.exit_game": ("exit_game",),
    "games.exit_attacks": ("lafeat", "max_average", "partial_attack"),
    "games.need": ("NEED",),
    "gradients": (
        "BPDA", "SPSA", "Backprop", "Checkpointed", "EoT", "Exact", "FixedRandomness",
        "Implicit", "Phantom", "SharedInverse", "SimultaneousAdjoint", "Smoothed",
    ),
    "runs": ("audit",),
    "games.runs.record": ("GameRecord",),
    "selftests": ("SelfTest", "selftest"),
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
    "BatchControl",
    "BlackBox",
    "Cascade",
    "Checkpointed",
    "Confident",
    "Context",
    "CosineAscent",
    "Defense",
    "Direct",
    "EoT",
    "Escalate",
    "Exact",
    "FixedPoint",
    "FixedRandomness",
    "GameRecord",
    "Gate",
    "GreedyModelSpace",
    "Implicit",
    "JointEquilibrium",
    "Linf",
    "LowEntropy",
    "MaxAverage",
    "MaxLossPoint",
    "MinLoss",
    "MultiExit",
    "MultiTarget",
    "Outcomes",
    "Phantom",
    "Plain",
    "Radii",
    "RayS",
    "Restarts",
    "RetrainedEnsemble",
    "SelfTest",
    "SharedInverse",
    "SimultaneousAdjoint",
    "Skip",
    "Smoothed",
    "SortedByLabel",
    "Square",
    "Threat",
    "Trace",
    "Trait",
    "Traits",
    "Transfer",
    "View",
    "WarmStart",
    "WorstCaseOrder",
    "aimer",
    "attach_exits",
    "audit",
    "autoattack",
    "cross_entropy",
    "dlr",
    "evaluate",
    "exit_game",
    "expected",
    "lafeat",
    "last",
    "load_data",
    "loss_of_mean",
    "margin",
    "max_average",
    "max_over_views",
    "mean_of_losses",
    "mixture",
    "partial_attack",
    "play",
    "probability_margin",
    "probe",
    "rand_suite",
    "saturated",
    "selftest",
    "smoothing_certificate",
    "targeted_dlr",
    "targeted_margin",
    "unbounded_ball",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'saddlepoint' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
