"""Common corruptions as a part of the threat model."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from saddlepoint.data.corruptions import CORRUPTIONS
from saddlepoint.rng import Keys

_SEED = 0


@dataclass(frozen=True)
class Corruption:
    """A corruption of Hendrycks & Dietterich 2019, applied to the images before any attack.

    Args:
        name: such as "fog"; `saddlepoint.data.corruptions` lists them.
        severity: 1 to 5, as in CIFAR-10-C.

    Raises:
        ValueError: there is no such corruption or severity.
    """

    name: str
    severity: int

    def __post_init__(self) -> None:
        if self.name not in CORRUPTIONS:
            near = get_close_matches(self.name, CORRUPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"there is no corruption {self.name!r}.{hint} Known: {', '.join(CORRUPTIONS)}."
            )
        if self.severity not in range(1, 6):
            raise ValueError(f"the severity of a corruption is 1 to 5, got {self.severity}.")

    @classmethod
    def parse(cls, text: str) -> Corruption:
        """Read a text such as "fog:3".

        Raises:
            ValueError: the text has another form.
        """
        name, colon, severity = text.partition(":")
        if not colon or not severity.isdigit():
            raise ValueError(f"a corruption is NAME:SEVERITY, such as fog:3, got {text!r}.")
        return cls(name.strip().replace("-", "_"), int(severity))

    def apply(self, x: Tensor) -> Tensor:
        """The corrupted images, [N, C, H, W] -> [N, C, H, W]. Noise depends on the image number.

        Raises:
            ValueError: the images have another number of dimensions.
        """
        if x.ndim != 4:
            raise ValueError(f"corruptions need images [N, C, H, W], got shape {list(x.shape)}.")
        keys = Keys.of(_SEED, torch.arange(len(x), device=x.device))
        return CORRUPTIONS[self.name](x, self.severity, keys)

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')} of severity {self.severity}"
