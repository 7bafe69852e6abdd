"""Traffic signs as prepared for URejectron: balanced classes, equalized histograms, three splits.

`prepared(load_data("gtsrb", split="train"))` does all of it. Classes are balanced by adding warped
copies of their images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from saddlepoint import phrases
from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import Data, DataError
from saddlepoint.rng import Keys

# Labels folded into the random keys, so that each use of randomness has its own stream.
_ANGLE = 1
_SHIFT = 2
_REACH = 3
_CORNERS = 4

_CHUNK = 1024  # images processed at once


class Parts(NamedTuple):
    """Three disjoint sets."""

    train: Data
    dev: Data
    test: Data


def prepared(data: Data, *, classes: int = 10, per_class: int = 10_000, seed: int = 0) -> Parts:
    """Balance, equalize and split the first classes 63 : 7 : 30 (Chen et al. 2022, A.1.2 and A.6).

    With 10 000 images in each of 10 classes the sizes are 63 000, 7000 and 30 000. One seed defines
    one split. The released code trains its classifier on the split of one seed and tests it on the
    split of another.

    As in the paper, the warped copies are made before the split. Copies of one photograph can
    therefore be in the training set and in the test set. To keep them apart, call
    `hold_out(data, fraction)` first and `balance_classes(part, n)` on each part.

    Args:
        data: The images.
        classes: Number of classes to keep, from the first; default 10.
        per_class: Number of images per class after balancing; default 10 000.
        seed: Seed of the copies and of the split; default 0.

    Raises:
        DataError: `classes` is below 2 or too large, or a class has more than `per_class` images.
    """
    if not 2 <= classes <= len(data.classes):
        raise DataError(
            f"{data.name}: classes must be between 2 and {len(data.classes)}, the number of "
            f"classes; got {classes}."
        )
    kept = data.y < classes
    first = replace(data, x=data.x[kept], y=data.y[kept], classes=data.classes[:classes])
    whole = balance_classes(first, per_class, seed=seed)
    equalized = replace(whole, x=equalize_histograms(whole.x))
    rest, test = hold_out(equalized, 0.3, seed=seed)
    train, dev = hold_out(rest, 0.1, seed=seed + 1)
    return Parts(train, dev, test)


def balance_classes(data: Data, per_class: int, *, seed: int = 0) -> Data:
    """Fill every class up to `per_class` examples with randomly warped copies.

    The result contains every original once. The classes are shuffled in a fixed order.

    Args:
        data: The images; classes without any image stay empty.
        per_class: Number of examples per class in the result.
        seed: Seed of the warps; default 0.

    Raises:
        DataError: A class has more than `per_class` examples.
    """
    position = torch.arange(per_class)
    rows = []
    rounds = []
    for label, members in _rows_by_class(data):
        if len(members) > per_class:
            raise DataError(
                f"{data.name}: class {label} has {phrases.count(len(members), 'example')}, more "
                f"than per_class={per_class}. Increase per_class to at least {len(members)}."
            )
        rows.append(members[position % len(members)])
        rounds.append(position // len(members))  # 0: the original; k: its k-th copy
    shuffled = torch.tensor(fixed_order(per_class * len(rows)))
    source = torch.cat(rows)[shuffled]
    copy_number = torch.cat(rounds)[shuffled]
    x = data.x[source]
    keys = Keys.of(seed, source).fold_in(copy_number)
    copies = (copy_number > 0).nonzero()[:, 0]
    if len(copies):
        warped = [random_warp(x[part], keys[part]) for part in torch.split(copies, _CHUNK)]
        x = x.index_copy(0, copies, torch.cat(warped))
    return replace(data, x=x, y=data.y[source])


def hold_out(data: Data, fraction: float, *, seed: int = 0) -> tuple[Data, Data]:
    """Split off a random fraction of every class.

    Args:
        data: The images.
        fraction: Fraction of each class to hold out, between 0 and 1; the count is rounded.
        seed: Seed of the choice; default 0.

    Returns:
        The remaining examples and the held-out examples, both in their original order.

    Raises:
        DataError: `fraction` is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise DataError(
            f"{data.name}: the fraction to hold out must be between 0 and 1, got {fraction}."
        )
    drawn = Keys.of(seed, torch.arange(len(data))).uniform((), torch.float64)
    is_held_out = torch.zeros(len(data), dtype=torch.bool)
    for _, members in _rows_by_class(data):
        count = round(fraction * len(members))
        chosen = members[drawn[members].argsort(stable=True)[:count]]
        is_held_out = is_held_out.index_fill(0, chosen, True)
    remaining = replace(data, x=data.x[~is_held_out], y=data.y[~is_held_out])
    held_out = replace(data, x=data.x[is_held_out], y=data.y[is_held_out])
    return remaining, held_out


def random_warp(
    x: Tensor, keys: Keys, *, degrees: float = 15.0, pixels: float = 2.5, corner: float = 0.24
) -> Tensor:
    """Rotate, shift and distort each image in perspective.

    The three maps are composed and applied with one bilinear interpolation; the released code
    interpolates three times. Values outside the image repeat its edge.

    Args:
        x: Images [N, C, H, W] in [0, 1].
        keys: Random keys, one per image.
        degrees: Largest rotation in degrees; default 15.
        pixels: Largest shift in pixels; default 2.5.
        corner: Each corner moves by up to d image sides, where d is drawn for each image between 0
            and `corner`. The default 0.24 is 0.3 x 0.8 in the released code.
    """
    height, width = x.shape[-2:]
    perspective = _perspective(keys, corner, height, width)
    to_source = _rotation(keys, degrees) @ _shift(keys, pixels) @ perspective  # [N, 3, 3]
    down, right = torch.meshgrid(
        torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij"
    )
    # Homogeneous pixel coordinates relative to the center, [H, W, 3].
    position = torch.stack([right - width / 2, down - height / 2, torch.ones_like(down)], -1)
    source = torch.einsum("nij,hwj->nhwi", to_source, position.double())
    unit = torch.tensor([2 / width, 2 / height], dtype=torch.float64)
    grid = source[..., :2] / source[..., 2:] * unit
    sampled = grid_sample(
        x, grid.to(x), mode="bilinear", padding_mode="border", align_corners=False
    )
    return sampled.clamp(0, 1)


def equalize_histograms(x: Tensor) -> Tensor:
    """Equalize the histogram of every channel of every image.

    In bytes, v -> (F(v) - F(v_0)) / (1 - F(v_0)), where F(v) is the fraction of pixels up to v and
    v_0 is the darkest value present. A channel with a single value is unchanged.
    """
    # Counting needs about a hundred times the memory of an image, so it is done in chunks.
    return torch.cat([_equalize_chunk(part) for part in torch.split(x, _CHUNK)])


def _rows_by_class(data: Data) -> list[tuple[int, Tensor]]:
    """Each label that occurs, with the indices of its examples."""
    return [(label, (data.y == label).nonzero()[:, 0]) for label in sorted(set(data.y.tolist()))]


def _equalize_chunk(x: Tensor) -> Tensor:
    flat = (x * 255).round().long().flatten(2)  # [N, C, P]
    pixels = flat.shape[-1]
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=x.device).scatter_add(
        2, flat, torch.ones_like(flat)
    )
    cumulative = counts.cumsum(2)
    darkest = cumulative.gather(2, flat.amin(2, keepdim=True))
    table = ((cumulative - darkest) / (pixels - darkest).clamp(min=1) * 255).round() / 255
    mapped = torch.where(darkest == pixels, flat / 255, table.clamp(min=0).gather(2, flat))
    return mapped.view_as(x).to(x)


def _matrices(rows: Sequence[Sequence[Tensor | float]], n: int) -> Tensor:
    """[N, 3, 3] matrices from entries that are numbers or tensors [N]."""
    full = [
        [torch.as_tensor(entry, dtype=torch.float64).expand(n) for entry in row] for row in rows
    ]
    return torch.stack([torch.stack(row, -1) for row in full], -2)


def _rotation(keys: Keys, degrees: float) -> Tensor:
    angle = (2 * keys.fold_in(_ANGLE).uniform((), torch.float64) - 1) * math.radians(degrees)
    c = angle.cos()
    s = angle.sin()
    return _matrices([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], len(keys))


def _shift(keys: Keys, pixels: float) -> Tensor:
    right, down = ((2 * keys.fold_in(_SHIFT).uniform((2,), torch.float64) - 1) * pixels).unbind(1)
    return _matrices([[1.0, 0.0, right], [0.0, 1.0, down], [0.0, 0.0, 1.0]], len(keys))


def _perspective(keys: Keys, corner: float, height: int, width: int) -> Tensor:
    """[N, 3, 3] projective maps H from the moved corners (u, v) to the image corners (x, y).

    H (u, v, 1) ~ (x, y, 1) for four pairs of points, with H_33 = 1.
    """
    reach = corner * max(height, width) * keys.fold_in(_REACH).uniform((1, 1), torch.float64)
    doubled = [[-width, -height], [-width, height], [width, height], [width, -height]]
    corners = torch.tensor(doubled, dtype=torch.float64) / 2
    displacement = 2 * keys.fold_in(_CORNERS).uniform((4, 2), torch.float64) - 1
    moved = corners + reach * displacement  # [N, 4, 2]
    u, v = moved.unbind(-1)
    one = torch.ones_like(u)
    zero = torch.zeros_like(u)
    x, y = corners.expand_as(moved).unbind(-1)
    # x (h7 u + h8 v + 1) = h1 u + h2 v + h3, and the same for y with h4, h5, h6.
    first = torch.stack([u, v, one, zero, zero, zero, -x * u, -x * v], -1)
    second = torch.stack([zero, zero, zero, u, v, one, -y * u, -y * v], -1)
    equations = torch.cat([first, second], 1)
    entries: Tensor = torch.linalg.solve(equations, torch.cat([x, y], 1))  # [N, 8]
    return torch.cat([entries, torch.ones_like(entries[:, :1])], 1).view(-1, 3, 3)
