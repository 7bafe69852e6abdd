"""Further adaptive defenses, from the list in Croce et al. 2022, Table 5.

`saddlepoint.zoo.adaptive.taxonomy.INDEX` lists all fourteen. Three are in
`saddlepoint.zoo.transductive`.
"""

from saddlepoint.zoo.adaptive.further.analysis_by_synthesis import AnalysisBySynthesis
from saddlepoint.zoo.adaptive.further.attribution_sharpening import AttributionSharpening
from saddlepoint.zoo.adaptive.further.covariate_shift import CovariateShiftAdaptation
from saddlepoint.zoo.adaptive.further.defense_gan import DefenseGAN, Generator, WassersteinTraining
from saddlepoint.zoo.adaptive.further.diffusion import DiffusionPurifier, NoiseNet
from saddlepoint.zoo.adaptive.further.energy import EBMPurifier, EnergyNet
from saddlepoint.zoo.adaptive.further.implicit_representation import ImplicitRepresentation
from saddlepoint.zoo.adaptive.further.joint_optimization import (
    EquilibriumDecoder,
    JointOptimization,
)
from saddlepoint.zoo.adaptive.further.pixel_defend import PixelCNN, PixelDefend
from saddlepoint.zoo.adaptive.further.quilting import Quilting
from saddlepoint.zoo.adaptive.further.tailoring import Tailoring
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
    "AttributionSharpening",
    "BitDepth",
    "CovariateShiftAdaptation",
    "DefenseGAN",
    "DiffusionPurifier",
    "EBMPurifier",
    "EnergyNet",
    "EquilibriumDecoder",
    "Generator",
    "ImplicitRepresentation",
    "JointOptimization",
    "NoiseNet",
    "PixelCNN",
    "PixelDefend",
    "Quilting",
    "Tailoring",
    "TotalVariation",
    "Transformation",
    "TransformationDefense",
    "WassersteinTraining",
    "released_vaes",
]
