"""Defenses of the zoo on the digits, by name."""

from collections.abc import Mapping

from saddlepoint.zoo.embedded.adaptive import ADAPTIVE
from saddlepoint.zoo.embedded.base import Kit
from saddlepoint.zoo.embedded.make import make, measure
from saddlepoint.zoo.embedded.transductive import TRANSDUCTIVE

KITS: Mapping[str, Kit] = {kit.name: kit for kit in (*ADAPTIVE, *TRANSDUCTIVE)}


def kit(name: str) -> Kit:
    """The kit of that name."""
    if name not in KITS:
        raise ValueError(
            f"{name} is recorded as a defense, but the defenses here are {', '.join(KITS)}. Update the package."
        )
    return KITS[name]


__all__ = ["KITS", "Kit", "kit", "make", "measure"]
