"""Perturbation masks: the attacker may change only some of the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace
from saddlepoint.phrases import count


@dataclass(frozen=True)
class Mask:
    """The pixels that the attacker may change, the same for all images: `Mask.of(allowed)`.

    Args:
        shape: of the mask: that of an image, [C, H, W], or one that broadcasts to it, [H, W].
        bits: the mask as hexadecimal digits, in the order of its entries, eight entries per byte.

    Raises:
        ValueError: the digits do not fit the shape, or no pixel may be changed.
    """

    shape: tuple[int, ...]
    bits: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # a record has a list
        if not bool(self.allowed.any()):
            raise ValueError("the mask allows no pixel to change. True marks pixels that may.")

    @classmethod
    def of(cls, allowed: Any) -> Mask:
        """The mask of a tensor or an array: non-zero entries may change.

        Args:
            allowed: [C, H, W] or [H, W], Boolean or numbers.
        """
        array = np.asarray(allowed) != 0
        return cls(tuple(array.shape), np.packbits(array).tobytes().hex())

    @property
    def allowed(self) -> Tensor:
        """The mask as a Boolean tensor."""
        size = int(np.prod(self.shape))
        packed = np.frombuffer(bytes.fromhex(self.bits), dtype=np.uint8)
        if len(packed) != (size + 7) // 8:
            raise ValueError(
                f"a mask of shape {list(self.shape)} does not have {count(len(packed), 'byte')}."
            )
        return torch.from_numpy(np.unpackbits(packed, count=size).astype(bool)).view(self.shape)

    def apply(self, points: Tensor, clean: Tensor) -> Tensor:
        """The points where pixels may change, the clean images elsewhere.

        Raises:
            ValueError: the mask does not fit the images.
        """
        allowed = self.allowed.to(points.device)
        try:
            torch.broadcast_to(allowed, points.shape[1:])
        except RuntimeError:
            raise ValueError(
                f"the mask has shape {list(self.shape)}, but images have shape "
                f"{list(points.shape[1:])}. Give a mask of the shape of an image, or [H, W]."
            ) from None
        return torch.where(allowed, points, clean)

    def __str__(self) -> str:
        allowed = self.allowed
        return f"mask of {int(allowed.sum())} of {allowed.numel()} pixels"


class MaskedPixels(DefenseWrapper):
    """The defense as it is queried if only some pixels may change.

    Other pixels are replaced by those of the clean images before every call, so that no loss and
    no gradient depends on them.
    """

    def __init__(self, inner: Defense, mask: Mask, clean: Tensor) -> None:
        super().__init__(inner)
        self.mask = mask
        self.clean = clean  # [N, ...]

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return MaskedPixels(inner, self.mask, self.clean if rows is None else self.clean[rows])

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.rewrap(self.inner.adapt(self.mask.apply(x, self.clean), ctx))

    def decouple(self, x: Tensor) -> Defense | None:
        fixed = self.inner.decouple(self.mask.apply(x, self.clean))
        return None if fixed is None else self.rewrap(fixed)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return self.inner.trace(self.mask.apply(x, self.clean), ctx)
