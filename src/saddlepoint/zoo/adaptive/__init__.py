"""Adaptive test-time defences: they optimise something before they answer."""

from saddlepoint.zoo.adaptive.aid import AIDPurifier, Discriminator
from saddlepoint.zoo.adaptive.anti_adversary import AntiAdversary
from saddlepoint.zoo.adaptive.denoising import AdaptiveDenoising
from saddlepoint.zoo.adaptive.hedge import HedgeDefense
from saddlepoint.zoo.adaptive.soap import SOAP
from saddlepoint.zoo.adaptive.tasks import LabelConsistency, Reconstruction, Rotation
from saddlepoint.zoo.adaptive.taxonomy import TABLE, Surveyed
from saddlepoint.zoo.nets.score import ScoreNet

__all__ = [
    "SOAP",
    "TABLE",
    "AIDPurifier",
    "AdaptiveDenoising",
    "AntiAdversary",
    "Discriminator",
    "HedgeDefense",
    "LabelConsistency",
    "Reconstruction",
    "Rotation",
    "ScoreNet",
    "Surveyed",
]
