"""Old name of `saddlepoint.zoo.adaptive.fitting`."""

from __future__ import annotations

from saddlepoint.zoo.adaptive.fitting import Phase, seeded

__all__ = ["Phase", "seeded"]
