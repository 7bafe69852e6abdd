"""Codes of single pixels inside a target: tensors in which each entry depends on one pixel.

A target may threshold, round or encode its pixels before it does anything else. The functions that
it calls are recorded, and a tensor is a code if a change of some pixels leaves the entries of all
other pixels as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.attacks.pixel_levels import PixelLevels
from saddlepoint.audits.target.transforms import outside_transforms
from saddlepoint.defenses import Context, Defense
from saddlepoint.rng import Keys

_MOST_ENTRIES = 64  # entries of a code per pixel
_MOST_TENSORS = 512  # recorded tensors; codes are computed first
_MOST_CODES = 64

Shape = tuple[int, ...]  # of an image
Key = tuple[int, int]  # the number of a function call, and of a tensor among its values
Layout = Callable[[Tensor, Shape], Tensor]  # a recorded tensor -> [n, d, k]


@dataclass(frozen=True)
class PixelCode:
    """One recorded tensor whose entries depend on one pixel each."""

    key: Key
    function: str  # the name of the function that computed or received it
    layout: Layout


@dataclass(frozen=True, eq=False)
class FoundLevels:
    """The levels of pixels, and where in the target they were found."""

    levels: PixelLevels
    source: str  # the first function that computes them
    reachable: int  # most levels of a pixel inside the perturbation set
    free: float  # mean number of pixels per image with more than one level

    def __str__(self) -> str:
        return (
            f"each pixel has at most {len(self.levels)} levels ({self.source}), "
            f"{self.reachable} within the radius; {self.free:.0f} pixels per image can change level"
        )


class _Finished(BaseException):
    """All tensors are recorded: the rest of the call is not needed."""


class _Record(TorchFunctionMode):
    """Records tensors that may contain a code of each pixel of `n` images.

    Arguments of functions are recorded as well, because compiled layers call no function that is
    visible here.
    """

    def __init__(self, n: int, pixels: int, wanted: frozenset[Key] | None) -> None:
        super().__init__()
        self.n = n
        self.pixels = pixels
        self.wanted = wanted  # None: all that fit
        self.found: dict[Key, tuple[str, Tensor]] = {}
        self.calls = 0

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        call = self.calls
        self.calls += 1
        for k, value in enumerate((*args, out)):
            key = (call, k)
            needed = self.wanted is None or key in self.wanted
            if needed and isinstance(value, Tensor) and self._fits(value):
                # A copy: the net may change the tensor in place.
                self.found[key] = (getattr(func, "__name__", "?"), value.detach().clone())
        self._finish()
        return out

    def _fits(self, value: Tensor) -> bool:
        if not value.ndim or len(value) != self.n or not value.numel():
            return False
        entries = value[0].numel()
        return entries % self.pixels == 0 and entries // self.pixels <= _MOST_ENTRIES

    def _finish(self) -> None:
        complete = self.wanted is not None and len(self.found) == len(self.wanted)
        if complete or len(self.found) > _MOST_TENSORS:
            raise _Finished


def record(
    defense: Defense, x: Tensor, wanted: frozenset[Key] | None = None
) -> dict[Key, tuple[str, Tensor]]:
    """The recorded tensors of one call with images [n, ...], each with the name of a function."""
    recorder = _Record(len(x), x[0].numel(), wanted)
    keys = Keys.of(0, torch.arange(len(x), device=x.device))
    with torch.no_grad():
        try:
            with recorder:
                defense.trace(x.clone(), Context(keys))
        except _Finished:
            pass
    return recorder.found


def codes(defense: Defense, x: Tensor, found: Sequence[PixelCode]) -> list[Tensor]:
    """The values of codes for images [n, ...], each [n, d, k].

    Raises:
        LookupError: the call did not compute one of them.
    """
    tensors = record(defense, x, frozenset(code.key for code in found))
    if len(tensors) < len({code.key for code in found}):
        raise LookupError("the target calls other functions for other images")
    return [code.layout(tensors[code.key][1], tuple(x.shape[1:])) for code in found]


def find_codes(defense: Defense, x: Tensor, other: Tensor) -> tuple[PixelCode, ...]:
    """All codes of single pixels that a call computes.

    Args:
        defense: a deterministic defense with independent rows.
        x: images, [n, ...].
        other: other images of the same shape, which differ from them in most pixels.
    """
    keys = Keys.of(3, torch.zeros(1, dtype=torch.long, device=x.device))
    chosen = keys.signs(tuple(x.shape[1:]))[0] > 0
    first = record(defense, x)
    changed = {
        mask: record(defense, torch.where(m, other, x)) for mask, m in ((0, chosen), (1, ~chosen))
    }
    kept = [~chosen.flatten(), chosen.flatten()]
    return tuple(_codes_among(first, changed, kept, tuple(x.shape[1:])))[:_MOST_CODES]


def _codes_among(
    first: Mapping[Key, tuple[str, Tensor]],
    changed: Mapping[int, Mapping[Key, tuple[str, Tensor]]],
    kept: Sequence[Tensor],
    shape: Shape,
) -> Iterator[PixelCode]:
    """Recorded tensors of which the entries of kept pixels, [d] bool, did not change."""
    seen: list[Tensor] = []
    for key, (name, before) in first.items():
        after = [changed[k].get(key, ("", before[:0]))[1] for k in (0, 1)]
        if any(t.shape != before.shape for t in after):
            continue
        if all(torch.equal(t, before) for t in after):
            continue  # a constant
        if any(
            torch.equal(before, t)
            for t in seen
            if t.dtype == before.dtype and t.shape == before.shape
        ):
            continue  # a result that is an argument of the next function
        for layout in LAYOUTS:
            if _keeps(layout, before, after, kept, shape):
                seen.append(before)
                yield PixelCode(key, name, layout)
                break


def _keeps(
    layout: Layout,
    before: Tensor,
    after: Sequence[Tensor],
    kept: Sequence[Tensor],
    shape: Shape,
) -> bool:
    return all(
        torch.equal(layout(before, shape)[:, mask], layout(t, shape)[:, mask])
        for t, mask in zip(after, kept, strict=True)
    )


def _code_last(t: Tensor, shape: Shape) -> Tensor:
    return t.reshape(len(t), math.prod(shape), -1)


def _code_first(t: Tensor, shape: Shape) -> Tensor:
    return t.reshape(len(t), -1, math.prod(shape)).mT


def _code_in_channels(t: Tensor, shape: Shape) -> Tensor:
    """[n, C k, H, W]."""
    return t.reshape(len(t), shape[0], -1, math.prod(shape[1:])).mT.reshape(
        len(t), math.prod(shape), -1
    )


def _channels_last(t: Tensor, shape: Shape) -> Tensor:
    """[n, H, W, C k]."""
    parts = t.reshape(len(t), math.prod(shape[1:]), shape[0], -1)
    return parts.transpose(1, 2).reshape(len(t), math.prod(shape), -1)


LAYOUTS: tuple[Layout, ...] = (_code_last, _code_first, _code_in_channels, _channels_last)
