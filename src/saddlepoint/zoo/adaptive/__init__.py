"""Adaptive test-time defenses: they solve an optimization problem at inference.

The nine defenses of the case study by Croce et al. 2022.
"""

from saddlepoint.zoo.adaptive.aid_purifier import AIDPurifier, Discriminator
from saddlepoint.zoo.adaptive.anti_adversary import AntiAdversary
from saddlepoint.zoo.adaptive.atld import ATLD
from saddlepoint.zoo.adaptive.auxiliary_tasks import LabelConsistency, Reconstruction, Rotation
from saddlepoint.zoo.adaptive.closed_loop import ClosedLoopControl
from saddlepoint.zoo.adaptive.contrastive import ContrastiveReversal
from saddlepoint.zoo.adaptive.denoising import AdaptiveDenoising, constant
from saddlepoint.zoo.adaptive.hedge import HedgeDefense
from saddlepoint.zoo.adaptive.soap import SOAP
from saddlepoint.zoo.adaptive.sodef import SODEF
from saddlepoint.zoo.adaptive.taxonomy import TABLE, Surveyed
from saddlepoint.zoo.nets.score import ScoreNet

__all__ = [
    "ATLD",
    "SOAP",
    "SODEF",
    "TABLE",
    "AIDPurifier",
    "AdaptiveDenoising",
    "AntiAdversary",
    "ClosedLoopControl",
    "ContrastiveReversal",
    "Discriminator",
    "HedgeDefense",
    "LabelConsistency",
    "Reconstruction",
    "Rotation",
    "ScoreNet",
    "Surveyed",
    "constant",
]
