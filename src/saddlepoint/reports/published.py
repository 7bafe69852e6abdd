"""What others report about the same target: figures that a run cannot measure and a reader wants beside it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from saddlepoint.runs.spec import nearest

FILE = "published.toml"


@dataclass(frozen=True)
class Published:
    """Robust accuracy according to others, as shares; None where nobody says. Kept as `published.toml` in the folder of the run."""

    claimed: float | None = None  # by those who made the target
    static: float | None = None  # of the static net inside it
    autoattack: float | None = None
    source: str = ""

    @classmethod
    def of(cls, values: dict[str, Any], place: str) -> Published:
        known = [f.name for f in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise ValueError(
                    f"{place}: {name!r} is unknown.{nearest(name, known)} Known: {', '.join(known)}."
                )
            if name == "source":
                if not isinstance(value, str):
                    raise ValueError(f"{place}: source is a text, got {value!r}.")
            elif (
                isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1
            ):
                raise ValueError(
                    f"{place}: {name} is a share between 0 and 1, 0.62 for 62 %, got {value!r}."
                )
        return cls(**values)

    @classmethod
    def read(cls, folder: Path) -> Published:
        """Nothing, where the folder has no such file."""
        path = folder / FILE
        if not path.is_file():
            return cls()
        try:
            return cls.of(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}.") from None


NOTHING = Published()
