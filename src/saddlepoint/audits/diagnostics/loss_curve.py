"""How far an attack's objective rose, and whether it was still rising when the attack ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

_LATE = 0.25  # of the passes


@dataclass(frozen=True)
class LossCurve:
    """What an attack had reached after so many forward passes per image, over the images it asked about.

    An image counts with the highest value that a point of the set had shown by then, and keeps it once it is left alone; images
    that answer together count with the best mean of their batch. `value` is the mean over images, told from where all of them have
    one, so that it never falls. `fooled` is what the attack saw on its way, which is no verdict. Empty where nothing was asked, or
    nothing was written down.
    """

    passes: tuple[int, ...] = ()  # [K] an image had spent at most that many
    images: tuple[int, ...] = ()  # [K] asked about by then
    fooled: tuple[float, ...] = ()  # [K] share of these answered wrongly at least once
    value: tuple[
        float | None, ...
    ] = ()  # [K] of the attack's own objective; None throughout where it asks for decisions alone

    @classmethod
    def of(cls, sums: Tensor) -> LossCurve:
        """From the sums [5, K] of an episode."""
        passes, asked, fooled, scored, total = sums.tolist()
        return cls(
            tuple(int(p) for p in passes),
            tuple(int(n) for n in asked),
            tuple(part / n if n else 0.0 for part, n in zip(fooled, asked, strict=True)),
            tuple(
                part / n if n and n == scored[-1] else None
                for part, n in zip(total, scored, strict=True)
            ),
        )

    @classmethod
    def read(cls, record: dict[str, list[Any]]) -> LossCurve:
        """From plain lists, as a record holds them."""
        return cls(**{name: tuple(column) for name, column in record.items()})

    @property
    def known(self) -> tuple[tuple[int, float], ...]:
        """(passes, value) wherever there is a value."""
        return tuple(
            (passes, value)
            for passes, value in zip(self.passes, self.value, strict=True)
            if value is not None
        )

    @property
    def final_slope(self) -> float | None:
        """How steep the last quarter was, in units of the whole climb's mean; None where nothing rose.

        On the way to a limit, 1 - exp(-t / tau), half as steep means that a fifth of the way is still ahead.
        """
        if not self.known or self.known[0][1] == self.known[-1][1]:
            return None
        (begin, first) = self.known[0]
        (end, last) = self.known[-1]
        late, before = [point for point in self.known if point[0] <= end - _LATE * (end - begin)][
            -1
        ]
        return (last - before) / (end - late) * (end - begin) / (last - first)
