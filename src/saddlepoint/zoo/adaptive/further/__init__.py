"""Further adaptive defenses, from the list in Croce et al. 2022, Table 5."""

from saddlepoint.zoo.adaptive.further.analysis_by_synthesis import AnalysisBySynthesis
from saddlepoint.zoo.adaptive.further.defense_gan import DefenseGAN, Generator, WassersteinTraining
from saddlepoint.zoo.adaptive.further.diffusion import DiffusionPurifier, NoiseNet
from saddlepoint.zoo.adaptive.further.energy import EBMPurifier, EnergyNet
from saddlepoint.zoo.adaptive.further.pixel_defend import PixelCNN, PixelDefend
from saddlepoint.zoo.adaptive.further.quilting import Quilting
from saddlepoint.zoo.adaptive.further.transformations import (
    JPEG,
    BitDepth,
    TotalVariation,
    Transformation,
    TransformationDefense,
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
    "TransformationDefense",
    "WassersteinTraining",
    "released_vaes",
]
