"""Threat models, adversaries, the referee, and outcomes."""

from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper
from saddlepoint.evaluation.annealed import Annealed
from saddlepoint.evaluation.attack_context import AttackContext, Simulation
from saddlepoint.evaluation.batch_control import BatchControl
from saddlepoint.evaluation.combinators import (
    Cascade,
    CleanCopies,
    MaxLossPoint,
    MultiTarget,
    OtherKeys,
    Restarts,
    SingleTarget,
    SkipMisclassified,
    Transfer,
    from_starts,
)
from saddlepoint.evaluation.corruption import Corruption
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.escalation import Escalate
from saddlepoint.evaluation.evolved import Evolved
from saddlepoint.evaluation.external import External, Points
from saddlepoint.evaluation.joint_equilibrium import JointEquilibrium
from saddlepoint.evaluation.masks import Mask
from saddlepoint.evaluation.on_examples import OnExamples
from saddlepoint.evaluation.orders import NaturalOrder, SortedByLabel, WorstCaseOrder
from saddlepoint.evaluation.outcomes import Outcomes, evaluate
from saddlepoint.evaluation.properties import AdversaryProperties
from saddlepoint.evaluation.referee import FixedPoints, play
from saddlepoint.evaluation.row_by_row import RowByRow, RowRounds
from saddlepoint.evaluation.row_search import RowSearch
from saddlepoint.evaluation.suites import autoattack, rand_suite
from saddlepoint.evaluation.threat import Threat
from saddlepoint.evaluation.transductive import (
    CleanFallback,
    FixedPoint,
    GreedyModelSpace,
    Portfolio,
    RetrainedEnsemble,
    Skip,
    high_confidence,
)
from saddlepoint.evaluation.warm_start import WarmStart

__all__ = [
    "Adversary",
    "AdversaryProperties",
    "AdversaryWrapper",
    "Annealed",
    "AttackContext",
    "BatchControl",
    "Cascade",
    "CleanCopies",
    "CleanFallback",
    "Corruption",
    "Direct",
    "Episode",
    "Escalate",
    "Evolved",
    "External",
    "FixedPoint",
    "FixedPoints",
    "GreedyModelSpace",
    "JointEquilibrium",
    "Mask",
    "MaxLossPoint",
    "MultiTarget",
    "NaturalOrder",
    "OnExamples",
    "OtherKeys",
    "Outcomes",
    "PassCost",
    "Points",
    "Portfolio",
    "Restarts",
    "RetrainedEnsemble",
    "RowByRow",
    "RowRounds",
    "RowSearch",
    "Simulation",
    "SingleTarget",
    "Skip",
    "SkipMisclassified",
    "SortedByLabel",
    "Threat",
    "Transfer",
    "WarmStart",
    "WorstCaseOrder",
    "autoattack",
    "evaluate",
    "from_starts",
    "high_confidence",
    "play",
    "rand_suite",
]
