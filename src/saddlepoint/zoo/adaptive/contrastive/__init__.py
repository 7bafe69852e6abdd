"""Contrastive reversal: move the input to lower a contrastive loss of its augmented copies."""

from saddlepoint.zoo.adaptive.contrastive.augmentation import Augmentation
from saddlepoint.zoo.adaptive.contrastive.defense import ContrastiveReversal
from saddlepoint.zoo.adaptive.contrastive.loss import contrastive_head, contrastive_loss

__all__ = ["Augmentation", "ContrastiveReversal", "contrastive_head", "contrastive_loss"]
