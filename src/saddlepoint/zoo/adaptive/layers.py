"""Old name of `saddlepoint.zoo.adaptive.feature_extraction`."""

from __future__ import annotations

from saddlepoint.zoo.adaptive.feature_extraction import Features
from saddlepoint.zoo.layers import refuse_unknown

__all__ = ["Features", "refuse_unknown"]
