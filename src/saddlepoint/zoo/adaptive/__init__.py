"""Adaptive test-time defences: networks that optimise while they answer (Croce et al. 2022)."""

from saddlepoint.zoo.adaptive.atld import ATLD
from saddlepoint.zoo.adaptive.closed_loop import ClosedLoopControl
from saddlepoint.zoo.adaptive.contrastive import ContrastiveReversal
from saddlepoint.zoo.adaptive.sodef import SODEF

__all__ = ["ATLD", "SODEF", "ClosedLoopControl", "ContrastiveReversal"]
