"""Old names of functions in `saddlepoint.zoo.adaptive.feature_extraction`."""

from __future__ import annotations

from saddlepoint.zoo.adaptive.feature_extraction import layer_outputs as features
from saddlepoint.zoo.adaptive.feature_extraction import logits_and_features as looked

__all__ = ["features", "looked"]
