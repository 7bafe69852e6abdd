"""Defenses that learn from the examples they are asked about."""

from saddlepoint.evaluation.rejection import RejectionCurve
from saddlepoint.zoo.transductive.dann import DANN, DomainTraining, cifar_domains
from saddlepoint.zoo.transductive.dent import DENT, entropy, information
from saddlepoint.zoo.transductive.optimizers import Adam, AdaMod
from saddlepoint.zoo.transductive.rmc import RMC, Library, Tuning
from saddlepoint.zoo.transductive.tadv import TADV, Pretrained, Trainer
from saddlepoint.zoo.transductive.tent import TENT, BatchStatistics
from saddlepoint.zoo.transductive.urejectron import (
    Distinguishing,
    Redacted,
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
    "Distinguishing",
    "DomainTraining",
    "Library",
    "Pretrained",
    "Redacted",
    "RejectionCurve",
    "Trainer",
    "Tuning",
    "URejectron",
    "cifar_domains",
    "entropy",
    "information",
    "rejection_curve",
]
