"""The loss curve of an attack: how far its loss increased, and whether it still did at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

_LATE = 0.25  # fraction of the passes


@dataclass(frozen=True)
class LossCurve:
    """The progress of an attack by forward passes per image, over the images that it queried.

    Each image counts with the highest loss of a point of the set so far. An image that is no longer
    queried keeps its value. Coupled images count with the best mean of their batch. `value` is the
    mean over images, from the first pass at which all of them have a value, so it never decreases.
    `misclassified` is what the attack itself observed; the referee may disagree. Empty if nothing
    was queried or recorded.
    """

    passes: tuple[int, ...] = ()  # [K] forward passes per image, at most
    images: tuple[int, ...] = ()  # [K] images queried by then
    misclassified: tuple[
        float, ...
    ] = ()  # [K] fraction of these that were misclassified at least once
    # [K] mean loss; None before all images have one, and always None for decision-based attacks
    value: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, sums: Tensor) -> LossCurve:
        """From the sums [5, K] that an episode records.

        They are: passes, queried images, misclassified images, images with a value, sum of values.
        """
        passes, images, misclassified, valued, total = sums.tolist()
        shares = [part / n if n else 0.0 for part, n in zip(misclassified, images, strict=True)]
        values = []
        for part, n in zip(total, valued, strict=True):
            complete = n and n == valued[-1]
            values.append(part / n if complete else None)
        return cls(
            tuple(int(p) for p in passes),
            tuple(int(n) for n in images),
            tuple(shares),
            tuple(values),
        )

    @classmethod
    def read(cls, record: dict[str, list[Any]]) -> LossCurve:
        """From the lists of a record."""
        return cls(**{name: tuple(column) for name, column in record.items()})

    @property
    def known(self) -> tuple[tuple[int, float], ...]:
        """(passes, value) wherever there is a value."""
        pairs = zip(self.passes, self.value, strict=True)
        return tuple((passes, value) for passes, value in pairs if value is not None)

    @property
    def final_slope(self) -> float | None:
        """The slope of the last quarter relative to the mean slope; None if nothing increased.

        For a curve 1 - exp(-t / tau), a slope of one half means that a fifth of the way to the
        limit is left.
        """
        if not self.known or self.known[0][1] == self.known[-1][1]:
            return None
        begin, first = self.known[0]
        end, last = self.known[-1]
        late = end - _LATE * (end - begin)
        start, value = [point for point in self.known if point[0] <= late][-1]
        return (last - value) / (end - start) * (end - begin) / (last - first)
