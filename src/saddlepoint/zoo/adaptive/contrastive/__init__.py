"""Contrastive reversal: inputs are moved to where a contrastive loss of their augmented copies is low."""

from saddlepoint.zoo.adaptive.contrastive.augment import Augmentation
from saddlepoint.zoo.adaptive.contrastive.defense import (
    ContrastiveReversal,
    contrast,
    contrastive_head,
)

__all__ = ["Augmentation", "ContrastiveReversal", "contrast", "contrastive_head"]
