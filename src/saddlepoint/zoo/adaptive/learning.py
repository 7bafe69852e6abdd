"""Old name of `saddlepoint.zoo.adaptive.fitting`."""

from saddlepoint.zoo.adaptive.fitting import Phase, seeded

__all__ = ["Phase", "seeded"]
