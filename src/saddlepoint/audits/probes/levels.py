"""Probes whether a target first maps each pixel to one of few levels, and finds these levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.pixel_levels import PixelLevels
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, Traits, present
from saddlepoint.audits.target.pixel_codes import FoundLevels, PixelCode, codes, find_codes
from saddlepoint.audits.target.rounding import alike
from saddlepoint.defenses import Defense

# Only targets with one of these traits are examined.
_REASONS = (
    TraitName.QUANTIZED,
    TraitName.ZERO_GRADIENTS,
    TraitName.NO_GRADIENT,
    TraitName.WRONG_GRADIENTS,
)
# A code must be a function of the pixel alone.
_EXCLUDED = (
    TraitName.RANDOM,
    TraitName.COUPLED,
    TraitName.ROW_ORDER,
    TraitName.BATCH_SIZE,
    TraitName.ADAPTS,
)
_GRID = 1025  # pixel values at which codes are compared: four per level of 8 bits
_MOST_LEVELS = 256
_MOST_REACHABLE = 32  # levels of a pixel inside the perturbation set
_MOST_NUMBERS = 2**22  # pixels per call
_MOST_TABLE = 2**24  # levels of all pixels
_BISECTIONS = 40
_ROWS = 4  # images with which codes are found


def find_levels(target: ProbeTarget, traits: Traits) -> FoundLevels | None:
    """The levels of pixels, if outputs are a function of few levels per pixel; else None.

    Only targets with useless gradients or piecewise constant outputs are examined.
    """
    if not any(name in traits for name in _REASONS) or any(name in traits for name in _EXCLUDED):
        return None
    if target.space.p != torch.inf or target.defense.memory != "none":
        return None
    if target.stateful(traits):
        target = target.stateless()
    try:
        return _find(target)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        # The functions that a call uses depend on the images, or fail on constant images.
        return None


def with_levels(traits: Traits, found: FoundLevels | None) -> Traits:
    """The traits with the levels as evidence of `TraitName.QUANTIZED`."""
    if found is None:
        return traits
    return Traits(tuple(_with_evidence(trait, found) for trait in traits))


def _with_evidence(trait: Trait, found: FoundLevels) -> Trait:
    if trait.name is not TraitName.QUANTIZED:
        return trait
    if trait.present:
        return replace(trait, evidence=f"{trait.evidence}; {found}")
    return present(TraitName.QUANTIZED, str(found))


def _find(target: ProbeTarget) -> FoundLevels | None:
    defense = target.defense
    x = target.x[:_ROWS]
    low, high = target.space.box
    other = low + (high - low) * target.keys(17, n=len(x)).uniform(tuple(x.shape[1:]), x.dtype)
    found = find_codes(defense, x, other)
    if not found:
        return None
    grid = torch.linspace(low, high, _GRID, dtype=x.dtype, device=x.device)
    few = _discrete(defense, x, found, grid)
    if not few:
        return None
    changes = _changes(defense, x, few, grid)  # [G - 1, d]
    table = int(changes.sum(0).amax() + 1) * changes.shape[1]
    if table > _MOST_TABLE:
        return None
    levels = _tabulated(defense, x, few, grid, changes)
    options = levels.options(target.x, target.space)
    reachable = int((options.highest - options.lowest).amax()) + 1
    if reachable > _MOST_REACHABLE or not _determine_outputs(target, levels):
        return None
    free = float(options.free.sum(1).double().mean())
    return FoundLevels(levels, f"torch.{few[0].function}", reachable, free)


def _discrete(
    defense: Defense, x: Tensor, found: Sequence[PixelCode], grid: Tensor
) -> tuple[PixelCode, ...]:
    """The codes that take few values on a grid of pixel values, [G]."""
    counts = [0] * len(found)
    for values in _images(grid, x):
        for k, code in enumerate(codes(defense, values, found)):
            # The most over pixels of one part; parts are added up, which is an upper bound.
            counts[k] += int(_differs(code[1:], code[:-1]).sum(0).amax())
    return tuple(
        code for code, count in zip(found, counts, strict=True) if 0 < count < _MOST_LEVELS
    )


def _changes(defense: Defense, x: Tensor, few: Sequence[PixelCode], grid: Tensor) -> Tensor:
    """[G - 1, d] bool: a code of a pixel differs at two neighboring values of the grid."""
    parts = []
    for values in _images(grid, x):
        changed = [_differs(code[1:], code[:-1]) for code in codes(defense, values, few)]
        parts.append(torch.stack(changed).any(0))
    return torch.cat(parts)


def _images(grid: Tensor, x: Tensor) -> Iterator[Tensor]:
    """Constant images with the values of a grid, in parts that share their first and last image."""
    shape = x.shape[1:]
    rows = max(_MOST_NUMBERS // shape.numel(), 8)
    for start in range(0, len(grid) - 1, rows):
        part = grid[start : start + rows + 1]
        yield part.view(-1, *[1] * len(shape)).expand(-1, *shape).contiguous()


def _differs(a: Tensor, b: Tensor) -> Tensor:
    """[n, d] bool: two codes, [n, d, k], are not equal."""
    return (a != b).any(2)


def _tabulated(
    defense: Defense, x: Tensor, few: Sequence[PixelCode], grid: Tensor, changes: Tensor
) -> PixelLevels:
    """Find the borders between levels by bisection of the cells of a grid in which codes change."""
    count = changes.sum(0)  # [d]
    borders = int(count.amax())
    # The cells of each pixel in increasing order, then cells that do not count.
    cells = changes.to(torch.uint8).argsort(dim=0, descending=True, stable=True)[:borders]  # [B, d]
    counts = torch.arange(borders, device=x.device)[:, None] < count  # [B, d] bool
    low = grid[cells]
    high = grid[cells + 1]
    reference = _all_codes(defense, low, x, few)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if ((middle == low) | (middle == high)).all():
            break
        same = torch.stack(
            [
                ~_differs(a, b)
                for a, b in zip(_all_codes(defense, middle, x, few), reference, strict=True)
            ]
        ).all(0)
        low = torch.where(same, middle, low)
        high = torch.where(same, high, middle)
    below = torch.where(counts, low, torch.inf).T  # [d, B] the last value of a level
    above = torch.where(counts, high, torch.inf).T  # [d, B] the first value of the next level
    return _shared(below, above, grid)


def _all_codes(
    defense: Defense, pixels: Tensor, x: Tensor, few: Sequence[PixelCode]
) -> list[Tensor]:
    """The codes, [B, d, k] each, of images with these pixels, [B, d]."""
    rows = max(_MOST_NUMBERS // pixels.shape[1], 1)
    parts = [
        codes(defense, part.view(-1, *x.shape[1:]).contiguous(), few)
        for part in torch.split(pixels, rows)
    ]
    return [torch.cat(code) for code in zip(*parts, strict=True)]


def _shared(below: Tensor, above: Tensor, grid: Tensor) -> PixelLevels:
    """The table of levels, with one row if all pixels have the same borders but for rounding."""
    width = float(grid[-1] - grid[0])
    if torch.equal(below.isinf().any(0), below.isinf().all(0)):
        spread = torch.stack([b.nan_to_num(posinf=0.0) for b in (below.amax(0) - below.amin(0),)])
        if float(spread.amax()) < 1e-6 * width:
            below = below.amin(0, keepdim=True)
            above = above.amax(0, keepdim=True)
    first = torch.full_like(below[:, :1], float(grid[0]))
    last = torch.full_like(below[:, :1], float(grid[-1]))
    start = torch.cat([first, above], dim=1)
    # A pixel with fewer borders has its last level before its infinite entries.
    end = torch.cat([below, torch.full_like(last, torch.inf)], dim=1)
    is_last = start.isfinite() & torch.cat(
        [start[:, 1:].isinf(), torch.ones_like(last, dtype=torch.bool)], dim=1
    )
    return PixelLevels(start, torch.where(is_last, last, end))


def _determine_outputs(target: ProbeTarget, levels: PixelLevels) -> bool:
    """Whether outputs at random points stay the same if pixels move within their levels."""
    point = target.space.sample(target.x, target.keys(19))
    options = levels.options(target.x, target.space)
    there = levels.options(point, replace(target.space, radius=0.0)).clean
    moved = options.values(there).view_as(point)
    with torch.no_grad():
        return alike(target.query_unadapted(point), target.query_unadapted(moved))
