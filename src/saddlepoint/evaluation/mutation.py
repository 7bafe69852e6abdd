"""Does a defense change when it should return a new value?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Defense

_DEPTH = 4
Print = dict[str, object]  # where something is kept -> what tells it from others


def fingerprint(defense: Defense) -> Print:
    """What is kept in a defense and in the networks and defenses inside it: flags and numbers, tensors by version, weights by sums.

    Sums see what is written behind the back of a version (`.data`). Tensors outside networks may be whole data sets: no sums there.
    """
    return dict(_seen(defense, type(defense).__name__, _DEPTH))


def refuse_mutation(defense: Defense, before: Print) -> None:
    """A defense that learns in place would carry what one attack taught it into the game of the next."""
    now = fingerprint(defense)
    changed = [place for place, value in before.items() if now.get(place) != value]
    if changed:
        places = ", ".join(changed[:3]) + (", ..." if len(changed) > 3 else "")
        raise ValueError(
            f"adapt() changed the defense itself ({places}), expected a new object and this one as it was. Copy what is learned, "
            "such as `copy.deepcopy(self.net)`, and return another defense that holds it."
        )


def _seen(value: Any, place: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, Tensor):
        yield place, _tensor(value)
    elif isinstance(value, nn.Module):
        yield f"{place}.training", tuple(module.training for module in value.modules())
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{place}.{name}", (_tensor(tensor), _sums(tensor))
    elif isinstance(value, Defense) and depth:
        for name, held in vars(value).items():
            yield from _seen(held, f"{place}.{name}", depth - 1)
    elif isinstance(value, list | tuple) and depth:
        yield f"{place}.length", len(value)
        for k, held in enumerate(value):
            yield from _seen(held, f"{place}[{k}]", depth - 1)
    elif isinstance(value, dict) and depth:
        yield f"{place}.length", len(value)
        for name, held in value.items():
            yield from _seen(held, f"{place}[{name!r}]", depth - 1)
    elif isinstance(value, bool | int | float | str):
        yield place, value


def _tensor(value: Tensor) -> object:
    version = None if value.is_inference() else value._version
    return tuple(value.shape), value.requires_grad, value.data_ptr(), version


def _sums(value: Tensor) -> str:
    value = value.detach()
    size = value.abs().sum(dtype=torch.float64) if value.is_floating_point() else value.sum()
    return (
        f"{value.sum(dtype=torch.float64).item()!r} {size.item()!r}"  # as text: nan is equal to nan
    )
