"""Read the threat model of an audit record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import (
    BatchControl,
    Corruption,
    Mask,
    NaturalOrder,
    SortedByLabel,
    Threat,
    WorstCaseOrder,
)

# The classes of this package that a field of a threat model can have.
_CLASSES = {
    cls.__name__: cls
    for cls in (BatchControl, Corruption, Mask, NaturalOrder, SortedByLabel, WorstCaseOrder)
}


def read_space(description: Mapping[str, Any]) -> Ball | None:
    """Rebuild the perturbation set of a threat model.

    Args:
        description: `Audit.threat_description`, which is `describe(threat)`.

    Returns:
        The perturbation set, or None for an empty description: the record was written before the
        description was kept.
    """
    if not description:
        return None
    space = description["space"]
    low, high = space["box"]
    return Ball(float(space["p"]), space["radius"], (low, high))  # JSON writes p = inf as a string


def read_threat(description: Mapping[str, Any]) -> Threat:
    """Rebuild a threat model: the inverse of `describe(threat)`.

    Args:
        description: `Audit.threat_description`, for which `why_unreadable` returns no reason.
    """
    space = read_space(description)
    assert space is not None, "check `why_unreadable` first"
    options = {
        name: _value(value) for name, value in description.items() if name not in ("kind", "space")
    }
    return Threat(space, **options)


def why_unreadable(description: Mapping[str, Any]) -> str:
    """Return the reason why `read_threat` cannot rebuild a threat model, or an empty string."""
    if not description:
        return "the record is too old and does not contain the threat model as structured data"
    objects = (value for name, value in description.items() if name != "space")
    kinds = (str(value.get("kind")) for value in objects if isinstance(value, Mapping))
    foreign = [kind for kind in kinds if kind not in _CLASSES]
    if foreign:
        return f"the threat model uses {', '.join(foreign)}, which is not part of saddlepoint"
    try:
        read_threat(description)
    except (TypeError, ValueError) as error:
        return f"the record contains no valid threat model ({error})"
    return ""


def _value(value: Any) -> Any:
    """Rebuild a field of the threat: an order or a batch control is a mapping with its class."""
    if not isinstance(value, Mapping):
        return value
    fields = {name: inner for name, inner in value.items() if name != "kind"}
    return _CLASSES[value["kind"]](**fields)
