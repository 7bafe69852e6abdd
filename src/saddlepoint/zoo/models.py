"""Trained models by name, as an audit attacks them."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from saddlepoint.defenses import Defense
from saddlepoint.zoo.embedded import kit
from saddlepoint.zoo.records import WEIGHTS, entry, load, names, weights


@runtime_checkable
class Defended(Protocol):
    """A network that defines its own defense, such as a solver or a strategy over exits."""

    @property
    def defense(self) -> Defense:
        """The defense to audit."""
        ...


def target(name: str, folder: str | Path = WEIGHTS) -> nn.Module | Defense:
    """Return the model that an audit of this name attacks.

    Args:
        name: The name of a network or of a defense.
        folder: The folder with the records; by default that of the package.

    Returns:
        A defense for the name of a defense. For a network, its own defense if it has one, and
        otherwise the network in eval mode.

    Raises:
        FileNotFoundError: The weights file is missing.
        ValueError: There is no model of this name, or its files are damaged.
    """
    record = entry(name, folder)
    if record.defense:
        # A defense in a user's folder uses the network of that folder if there is one.
        base = load(record.net, folder if record.net in names(folder) else WEIGHTS)
        return kit(name).defend(base, weights(name, folder))
    net = load(name, folder)
    return net.defense if isinstance(net, Defended) else net
