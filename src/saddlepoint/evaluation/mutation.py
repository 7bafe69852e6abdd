"""Detects a defense that changes itself in `adapt` instead of returning a new object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Defense

_DEPTH = 4
Fingerprint = dict[str, object]  # place of a value inside the defense -> what identifies the value


def fingerprint(defense: Defense) -> Fingerprint:
    """Identify all values inside a defense and the networks and defenses that it contains.

    Numbers and flags are kept as they are, tensors by version, weights also by their sums. Sums
    detect changes that do not increase the version (`.data`). Tensors outside networks have no
    sums, because they may be whole data sets.
    """
    return dict(_values(defense, type(defense).__name__, _DEPTH))


def require_unchanged(defense: Defense, before: Fingerprint) -> None:
    """Raise ValueError if the defense has changed since its fingerprint was taken.

    A defense that adapts in place would carry what it adapted to from one attack to the next.
    """
    now = fingerprint(defense)
    changed = [place for place, value in before.items() if now.get(place) != value]
    if changed:
        places = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise ValueError(
            f"adapt() changed the defense itself ({places}), expected a new object and an "
            "unchanged original. Copy what adapts, such as `copy.deepcopy(self.net)`, and return "
            "another defense that contains the copy."
        )


def _values(value: Any, place: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, Tensor):
        yield place, _tensor(value)
    elif isinstance(value, nn.Module):
        yield f"{place}.training", tuple(module.training for module in value.modules())
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{place}.{name}", (_tensor(tensor), tensor_sums(tensor))
    elif isinstance(value, Defense) and depth:
        for name, inner in vars(value).items():
            yield from _values(inner, f"{place}.{name}", depth - 1)
    elif isinstance(value, list | tuple) and depth:
        yield f"{place}.length", len(value)
        for k, inner in enumerate(value):
            yield from _values(inner, f"{place}[{k}]", depth - 1)
    elif isinstance(value, dict) and depth:
        yield f"{place}.length", len(value)
        for name, inner in value.items():
            yield from _values(inner, f"{place}[{name!r}]", depth - 1)
    elif isinstance(value, bool | int | float | str):
        yield place, value


def _tensor(value: Tensor) -> object:
    version = None if value.is_inference() else value._version
    return tuple(value.shape), value.requires_grad, value.data_ptr(), version


def tensor_sums(value: Tensor) -> str:
    """The sum and the absolute sum of a tensor, which detect changes of its entries."""
    value = value.detach()
    size = value.abs().sum(dtype=torch.float64) if value.is_floating_point() else value.sum()
    total = value.sum(dtype=torch.float64).item()
    return f"{total!r} {size.item()!r}"  # as text, so that NaN equals NaN
