"""Signs that a number cannot be trusted, found before or after the attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["note", "warning", "serious"]


@dataclass(frozen=True)
class Symptom:
    """One finding: what was seen and what to do. A serious one means that the robust accuracy may be far too high."""

    name: str
    level: Level
    message: str
