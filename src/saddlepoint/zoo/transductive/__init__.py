"""Defences that learn from the test batch before they answer."""

from saddlepoint.zoo.transductive.dann import DANN, DomainTraining, cifar_domains
from saddlepoint.zoo.transductive.rmc import RMC, Library, Tuning
from saddlepoint.zoo.transductive.tadv import TADV, Pretrained, Trainer
from saddlepoint.zoo.transductive.urejectron import Distinguishing, Redacted, RejectionCurve, URejectron, rejection_curve

__all__ = [
    "DANN",
    "RMC",
    "TADV",
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
    "rejection_curve",
]
