"""Recipes of the packaged defenses on the digits, by name."""

from collections.abc import Mapping

from saddlepoint.zoo.embedded.adaptive import ADAPTIVE
from saddlepoint.zoo.embedded.base import Kit
from saddlepoint.zoo.embedded.make import check_accuracy, make
from saddlepoint.zoo.embedded.transductive import TRANSDUCTIVE

KITS: Mapping[str, Kit] = {kit.name: kit for kit in (*ADAPTIVE, *TRANSDUCTIVE)}


def kit(name: str) -> Kit:
    """Return the recipe of the defense with this name.

    Raises:
        ValueError: If there is no such recipe.
    """
    if name not in KITS:
        raise ValueError(
            f"the record of {name} describes a defense, but this version of the package only has "
            f"the defenses {', '.join(KITS)}. Update the package."
        )
    return KITS[name]


__all__ = ["KITS", "Kit", "check_accuracy", "kit", "make"]
