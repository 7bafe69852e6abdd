"""Further adaptive defences, of those that Croce et al. 2022 index in Table 5."""

from saddlepoint.zoo.adaptive.further.diffusion import DiffusionPurifier, NoiseNet
from saddlepoint.zoo.adaptive.further.energy import EBMPurifier, EnergyNet
from saddlepoint.zoo.adaptive.further.generator import DefenseGAN, Generator, WassersteinTraining
from saddlepoint.zoo.adaptive.further.pixels import PixelCNN, PixelDefend
from saddlepoint.zoo.adaptive.further.transformations import JPEG, BitDepth, TotalVariation, Transformation, Transformed

__all__ = [
    "JPEG",
    "BitDepth",
    "DefenseGAN",
    "DiffusionPurifier",
    "EBMPurifier",
    "EnergyNet",
    "Generator",
    "NoiseNet",
    "PixelCNN",
    "PixelDefend",
    "TotalVariation",
    "Transformation",
    "Transformed",
    "WassersteinTraining",
]
