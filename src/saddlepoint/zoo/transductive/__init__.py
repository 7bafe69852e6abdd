"""Defenses that adapt to the test examples."""

from saddlepoint.evaluation.rejection import RejectionCurve
from saddlepoint.zoo.transductive.dann import (
    DANN,
    ChanceAccuracyWarning,
    DomainTraining,
    cifar_domains,
)
from saddlepoint.zoo.transductive.dent import DENT, entropy, information
from saddlepoint.zoo.transductive.optimizers import Adam, AdaMod
from saddlepoint.zoo.transductive.rmc import RMC, Library, Tuning
from saddlepoint.zoo.transductive.tadv import TADV, Pretrained, Trainer
from saddlepoint.zoo.transductive.tent import TENT, BatchStatistics
from saddlepoint.zoo.transductive.urejectron import (
    Distinguishing,
    SelectiveClassifier,
    URejectron,
    rejection_curve,
)

__all__ = [
    "DANN",
    "DENT",
    "RMC",
    "TADV",
    "TENT",
    "AdaMod",
    "Adam",
    "BatchStatistics",
    "ChanceAccuracyWarning",
    "Distinguishing",
    "DomainTraining",
    "Library",
    "Pretrained",
    "RejectionCurve",
    "SelectiveClassifier",
    "Trainer",
    "Tuning",
    "URejectron",
    "cifar_domains",
    "entropy",
    "information",
    "rejection_curve",
]
