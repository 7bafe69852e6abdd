"""ATLD: inputs are moved to what a discriminator of logits, trained against the network, takes for natural."""

from saddlepoint.zoo.adaptive.atld.defense import ATLD
from saddlepoint.zoo.adaptive.atld.discriminator import Discriminator, Judgment, LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import LatentTraining

__all__ = ["ATLD", "Discriminator", "Judgment", "LatentTraining", "LogitDiscriminator"]
