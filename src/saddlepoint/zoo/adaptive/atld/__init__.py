"""ATLD: move the input to where a discriminator of logits predicts "natural".

The discriminator and the network are trained against each other.
"""

from saddlepoint.zoo.adaptive.atld.defense import ATLD
from saddlepoint.zoo.adaptive.atld.discriminator import DiscriminatorOutput, LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import LatentTraining

__all__ = ["ATLD", "DiscriminatorOutput", "LatentTraining", "LogitDiscriminator"]
