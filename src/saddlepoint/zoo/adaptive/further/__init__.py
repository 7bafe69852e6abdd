"""Further adaptive defenses, of those that Croce et al. 2022 index in Table 5."""

from saddlepoint.zoo.adaptive.further.diffusion import DiffusionPurifier, NoiseNet
from saddlepoint.zoo.adaptive.further.energy import EBMPurifier, EnergyNet
from saddlepoint.zoo.adaptive.further.generator import DefenseGAN, Generator, WassersteinTraining
from saddlepoint.zoo.adaptive.further.pixels import PixelCNN, PixelDefend
from saddlepoint.zoo.adaptive.further.quilting import Quilting
from saddlepoint.zoo.adaptive.further.synthesis import AnalysisBySynthesis
from saddlepoint.zoo.adaptive.further.transformations import (
    JPEG,
    BitDepth,
    TotalVariation,
    Transformation,
    Transformed,
)
from saddlepoint.zoo.nets.vae import VAE, released_vaes

__all__ = [
    "JPEG",
    "VAE",
    "AnalysisBySynthesis",
    "BitDepth",
    "DefenseGAN",
    "DiffusionPurifier",
    "EBMPurifier",
    "EnergyNet",
    "Generator",
    "NoiseNet",
    "PixelCNN",
    "PixelDefend",
    "Quilting",
    "TotalVariation",
    "Transformation",
    "Transformed",
    "WassersteinTraining",
    "released_vaes",
]
