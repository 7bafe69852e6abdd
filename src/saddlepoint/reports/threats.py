"""Read the threat model of an audit record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import (
    BatchControl,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
)

_CLASSES = {
    cls.__name__: cls for cls in (BatchControl, NaturalOrder, SortedByLabel, WorstCaseOrder)
}


def read_threat(description: Mapping[str, Any]) -> Threat | None:
    """Rebuild a threat model from its description: the inverse of `describe(threat)`.

    Args:
        description: `Audit.threat_description`.

    Returns:
        The threat model, or None for an empty description. Records written before the description
        was kept have an empty one.
    """
    if not description:
        return None
    options = {
        name: _value(value) for name, value in description.items() if name not in ("kind", "space")
    }
    return Threat(_ball(description["space"]), **options)


def _ball(space: Mapping[str, Any]) -> Ball:
    low, high = space["box"]
    return Ball(float(space["p"]), space["radius"], (low, high))  # JSON writes p = inf as a string


def _value(value: Any) -> Any:
    """Rebuild a field of the threat: an order or a batch control is a mapping with its class."""
    if not isinstance(value, Mapping):
        return value
    fields = {name: inner for name, inner in value.items() if name != "kind"}
    return _CLASSES[value["kind"]](**fields)
