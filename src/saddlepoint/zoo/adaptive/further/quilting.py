"""Image quilting: the image is laid anew of patches that were cut out of clean ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from saddlepoint.defenses import Context
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Quilting:
    """Lays patches over the image row by row, each one of the `neighbors` of the database nearest to what it covers, by a coin.

    Patches overlap; there the new one begins at the cut of least error. Of a left overlap with e_ij = sum over channels of (old -
    new)^2 the cut is the path that goes down by one and aside by at most one, along which e sums to least; above, the same on its
    side (Efros & Freeman 2001). As a defense: Guo et al. 2018, with patches of 5 x 5; their released code takes the nearest unless
    told otherwise, and 10 and the overlap are our choice. Where patches do not divide the image, the last overlaps by more.

    Nothing that is laid depends smoothly on the image: only `BPDA()` brings a gradient.
    """

    patches: Tensor  # [M, C, P, P]
    neighbors: int = 10
    overlap: int = 2  # pixels, at least

    def __post_init__(self) -> None:
        shape = list(self.patches.shape)
        if self.patches.ndim != 4 or shape[2] != shape[3]:
            raise ValueError(f"Quilting needs square patches [M, C, P, P], got {shape}.")
        if not 1 <= self.neighbors <= shape[0] or not 0 <= self.overlap < shape[3]:
            raise ValueError(
                f"Quilting needs 1 <= neighbors <= {shape[0]}, the number of patches, and 0 <= overlap < {shape[3]}, their side; "
                f"got neighbors={self.neighbors} and overlap={self.overlap}."
            )

    @classmethod
    def of(
        cls,
        images: Tensor,
        *,
        count: int = 10_000,
        size: int = 5,
        neighbors: int = 10,
        overlap: int = 2,
        seed: int = 0,
    ) -> Quilting:
        """With `count` patches of size x size pixels from anywhere in the images [N, C, H, W], by the seed."""
        if images.ndim != 4 or min(images.shape[2:]) < size or size < 1 or count < 1:
            raise ValueError(
                f"patches of {size} x {size} are cut out of images [N, C, H, W] at least as large, at least one of them; got "
                f"{list(images.shape)} and count={count}."
            )
        keys = Keys.of(seed, torch.arange(count, device=images.device))
        (n, _, height, width) = images.shape
        image = keys.integers(n)
        down = keys.fold_in(1).integers(height - size + 1)
        right = keys.fold_in(2).integers(width - size + 1)
        side = torch.arange(size, device=images.device)
        rows = (down[:, None] + side)[:, :, None]
        columns = (right[:, None] + side)[:, None, :]
        cut = images[image[:, None, None], :, rows, columns]  # [M, P, P, C]
        return cls(cut.permute(0, 3, 1, 2).contiguous(), neighbors, overlap)

    @property
    def random(self) -> bool:
        return self.neighbors > 1

    @torch.no_grad()
    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        size = self.patches.shape[3]
        channels = self.patches.shape[1]
        if x.ndim != 4 or x.shape[1] != channels or min(x.shape[2:]) < size:
            raise ValueError(
                f"patches {list(self.patches.shape[1:])} do not cover images of {list(x.shape)}."
            )
        downs, rights = (_places(side, size, size - self.overlap) for side in x.shape[2:])
        picks = ctx.randint(self.neighbors, len(downs), len(rights))  # [N, rows, columns]
        laid = torch.zeros_like(x)
        (height, width) = x.shape[2:]
        for i, down in enumerate(downs):
            for j, right in enumerate(rights):
                here = (..., slice(down, down + size), slice(right, right + size))
                new = self._near(x[here], picks[:, i, j])
                old = laid[here]
                above = downs[i - 1] + size - down if i else 0
                before = rights[j - 1] + size - right if j else 0
                fresh = ~(_kept(old, new, before) | _kept(old.mT, new.mT, above).mT)  # [N, P, P]
                around = (right, width - right - size, down, height - down - size)
                laid = torch.where(pad(fresh, around)[:, None], pad(new, around), laid)
        return laid

    def _near(self, wanted: Tensor, pick: Tensor) -> Tensor:
        """[N, C, P, P]: of the patches nearest to these, for each row the one picked."""
        patches = self.patches.to(wanted)
        far = torch.cdist(
            wanted.flatten(1), patches.flatten(1), compute_mode="donot_use_mm_for_euclid_dist"
        )  # [N, M]
        nearest = far.topk(self.neighbors, largest=False).indices  # [N, K]
        return patches[nearest.gather(1, pick[:, None])[:, 0]]


def _places(side: int, size: int, stride: int) -> list[int]:
    """Where patches begin, the last one at the edge."""
    return [*range(0, side - size, stride), side - size]


def _kept(old: Tensor, new: Tensor, overlap: int) -> Tensor:
    """[N, P, P]: where what was laid stays, left of the cut; the cut itself belongs to the new patch."""
    columns = torch.arange(new.shape[3], device=new.device)
    if overlap == 0:
        return torch.zeros(
            len(new), new.shape[2], new.shape[3], dtype=torch.bool, device=new.device
        )
    error = (old - new)[..., :overlap].square().sum(1)  # [N, P, overlap]
    return columns < _cut(error)[:, :, None]


def _cut(error: Tensor) -> Tensor:
    """[N, P]: the column of the cheapest path down [N, P, W], by dynamic programming from its end."""
    rest = [error[:, -1]]  # of the path from each column of a row to the end
    for row in error.flip(1).unbind(1)[1:]:
        beyond = pad(rest[-1], (1, 1), value=torch.inf)
        rest.append(row + torch.stack([beyond[:, :-2], beyond[:, 1:-1], beyond[:, 2:]]).amin(0))
    place = rest[-1].argmin(1)
    places = [place]
    for costs in rest[-2::-1]:
        aside = (torch.arange(costs.shape[1], device=costs.device) - place[:, None]).abs() <= 1
        place = costs.masked_fill(~aside, torch.inf).argmin(1)
        places.append(place)
    return torch.stack(places, dim=1)
