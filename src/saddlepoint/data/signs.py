"""Traffic signs as URejectron is given them: classes made equally large by warped copies, histograms made flat, then split.

`prepared(load_data("gtsrb", split="train"))` does it all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import Data, DataError
from saddlepoint.rng import Keys

_ANGLE, _SHIFT, _REACH, _CORNERS = range(1, 5)  # each use of randomness tosses its own coins


class Parts(NamedTuple):
    """Three sets without an example in common."""

    train: Data
    dev: Data
    test: Data


def prepared(data: Data, *, classes: int = 10, per_class: int = 10_000, seed: int = 0) -> Parts:
    """The first `classes` signs, balanced, equalized and split 63 : 7 : 30 within each class (Chen et al. 2022, A.1.2 and A.6).

    With 10 000 images in each of 10 classes: 63 000, 7000 and 30 000. One seed makes one split: the released code trains its
    classifier by the split of one seed and tests it on that of another. As in the paper copies are made before the split, so that
    warped copies of one photograph stand on both sides of it; `balanced(part, n)` of each part of `divided(data, share)` keeps them
    apart.
    """
    if not 2 <= classes <= len(data.classes):
        raise DataError(
            f"{data.name}: asked for the first {classes} of {len(data.classes)} classes; there must be two at least."
        )
    kept = data.y < classes
    first = replace(data, x=data.x[kept], y=data.y[kept], classes=data.classes[:classes])
    whole = balanced(first, per_class, seed=seed)
    rest, test = divided(replace(whole, x=equalized(whole.x)), 0.3, seed=seed)
    train, dev = divided(rest, 0.1, seed=seed + 1)
    return Parts(train, dev, test)


def balanced(data: Data, per_class: int, *, seed: int = 0) -> Data:
    """`per_class` examples of every class that is there: all that there are, then warped copies of them in turn."""
    place = torch.arange(per_class)
    rows = []
    rounds = []
    for label, own in _by_class(data):
        if len(own) > per_class:
            raise DataError(
                f"{data.name}: class {label} has {len(own)} examples, more than per_class={per_class}. Ask for as many."
            )
        rows.append(own[place % len(own)])
        rounds.append(place // len(own))  # 0: the example itself
    mixed = torch.tensor(fixed_order(per_class * len(rows)))
    order = torch.cat(rows)[mixed]
    again = torch.cat(rounds)[mixed]
    x = data.x[order]
    keys = Keys.of(seed, order).fold_in(again)
    copies = (again > 0).nonzero()[:, 0]
    parts = [warped(x[part], keys[part]) for part in torch.split(copies, 1024)]
    return replace(
        data, x=x.index_copy(0, copies, torch.cat(parts)) if parts else x, y=data.y[order]
    )


def divided(data: Data, share: float, *, seed: int = 0) -> tuple[Data, Data]:
    """What is left, and a share of every class, rounded, set aside by the seed; both in the order in which they were."""
    if not 0 < share < 1:
        raise DataError(
            f"{data.name}: the share to set aside must lie between 0 and 1, got {share}."
        )
    drawn = Keys.of(seed, torch.arange(len(data))).uniform((), torch.float64)
    aside = torch.zeros(len(data), dtype=torch.bool)
    for _, own in _by_class(data):
        aside = aside.index_fill(
            0, own[drawn[own].argsort(stable=True)[: round(share * len(own))]], True
        )
    left, taken = (replace(data, x=data.x[rows], y=data.y[rows]) for rows in (~aside, aside))
    return left, taken


def warped(
    x: Tensor, keys: Keys, *, degrees: float = 15.0, pixels: float = 2.5, corner: float = 0.24
) -> Tensor:
    """Rotated by up to `degrees`, shifted by up to `pixels`, then seen askew: each corner moves by up to d sides of the image.

    d is drawn for each image between 0 and `corner`, 0.3 x 0.8 in the released code. One bilinear look through all three maps,
    where that code looks three times; what comes in from outside repeats the edge.
    """
    height, width = x.shape[-2:]
    inwards = (
        _rotation(keys, degrees) @ _shift(keys, pixels) @ _askew(keys, corner, height, width)
    )  # [N, 3, 3]
    down, right = torch.meshgrid(
        torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij"
    )
    at = torch.stack(
        [right - width / 2, down - height / 2, torch.ones_like(down)], -1
    ).double()  # [H, W, 3] from the center
    seen = torch.einsum("nij,hwj->nhwi", inwards, at)
    grid = (
        seen[..., :2] / seen[..., 2:] * torch.tensor([2 / width, 2 / height], dtype=torch.float64)
    )
    return grid_sample(
        x, grid.to(x), mode="bilinear", padding_mode="border", align_corners=False
    ).clamp(0, 1)


def equalized(x: Tensor) -> Tensor:
    """Every channel of every image with a flat histogram: v -> (F(v) - F(v_0)) / (1 - F(v_0)) in bytes.

    F(v) is the share of pixels up to v, and v_0 the darkest there is. A channel of one color stays as it is.
    """
    return torch.cat(
        [_equalized(part) for part in torch.split(x, 1024)]
    )  # counting takes a hundred times an image's memory


def _by_class(data: Data) -> list[tuple[int, Tensor]]:
    """Each class that is there with its rows."""
    return [(label, (data.y == label).nonzero()[:, 0]) for label in sorted(set(data.y.tolist()))]


def _equalized(x: Tensor) -> Tensor:
    flat = (x * 255).round().long().flatten(2)  # [N, C, P]
    pixels = flat.shape[-1]
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=x.device).scatter_add(
        2, flat, torch.ones_like(flat)
    )
    below = counts.cumsum(2)
    darkest = below.gather(2, flat.amin(2, keepdim=True))
    table = ((below - darkest) / (pixels - darkest).clamp(min=1) * 255).round() / 255
    plain = torch.where(darkest == pixels, flat / 255, table.clamp(min=0).gather(2, flat))
    return plain.view_as(x).to(x)


def _matrices(rows: Sequence[Sequence[Tensor | float]], n: int) -> Tensor:
    """[N, 3, 3] from entries [N] and numbers."""
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


def _askew(keys: Keys, corner: float, height: int, width: int) -> Tensor:
    """The projective map of the moved corners to the corners: H (u, v, 1) ~ (x, y, 1) for four pairs of points, H_33 = 1."""
    reach = corner * max(height, width) * keys.fold_in(_REACH).uniform((1, 1), torch.float64)
    still = (
        torch.tensor(
            [[-width, -height], [-width, height], [width, height], [width, -height]],
            dtype=torch.float64,
        )
        / 2
    )
    moved = still + reach * (
        2 * keys.fold_in(_CORNERS).uniform((4, 2), torch.float64) - 1
    )  # [N, 4, 2]
    u, v = moved.unbind(-1)
    one = torch.ones_like(u)
    zero = torch.zeros_like(u)
    (x, y) = still.expand_as(moved).unbind(-1)
    first = torch.stack(
        [u, v, one, zero, zero, zero, -x * u, -x * v], -1
    )  # x (h7 u + h8 v + 1) = h1 u + h2 v + h3
    second = torch.stack([zero, zero, zero, u, v, one, -y * u, -y * v], -1)
    entries: Tensor = torch.linalg.solve(
        torch.cat([first, second], 1), torch.cat([x, y], 1)
    )  # [N, 8]
    return torch.cat([entries, torch.ones_like(entries[:, :1])], 1).view(-1, 3, 3)
