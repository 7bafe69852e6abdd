"""Adaptive test-time defenses: they solve an optimization problem at inference.

The nine defenses of the case study by Croce et al. 2022. The further defenses of its Table 5 are in
`saddlepoint.zoo.adaptive.further`.
"""

from saddlepoint.zoo.adaptive.aid_purifier import AIDPurifier, Discriminator
from saddlepoint.zoo.adaptive.aid_weights import released_discriminator
from saddlepoint.zoo.adaptive.anti_adversary import AntiAdversary
from saddlepoint.zoo.adaptive.atld import ATLD
from saddlepoint.zoo.adaptive.auxiliary_tasks import LabelConsistency, Reconstruction, Rotation
from saddlepoint.zoo.adaptive.closed_loop import ClosedLoopControl
from saddlepoint.zoo.adaptive.contrastive import ContrastiveReversal
from saddlepoint.zoo.adaptive.denoising import AdaptiveDenoising, constant
from saddlepoint.zoo.adaptive.hedge import HedgeDefense
from saddlepoint.zoo.adaptive.nearest_upsampling import (
    nearest,
    nearest_with_old_cuda_gradient,
)
from saddlepoint.zoo.adaptive.soap import SOAP
from saddlepoint.zoo.adaptive.sodef import SODEF
from saddlepoint.zoo.adaptive.taxonomy import INDEX, TABLE, Indexed, Surveyed
from saddlepoint.zoo.nets.score import ScoreNet

__all__ = [
    "ATLD",
    "INDEX",
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
    "Indexed",
    "LabelConsistency",
    "Reconstruction",
    "Rotation",
    "ScoreNet",
    "Surveyed",
    "constant",
    "nearest",
    "nearest_with_old_cuda_gradient",
    "released_discriminator",
]
