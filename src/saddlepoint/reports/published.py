"""Published results for the same target, which a run cannot measure, shown beside ours."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from saddlepoint.locate import nearest

FILE = "published.toml"


@dataclass(frozen=True)
class Published:
    """Robust accuracies reported by others, in [0, 1], kept as `published.toml` in a run folder.

    None means that no such number was published.
    """

    claimed: float | None = None  # by the authors of the target
    static: float | None = None  # of the static model inside the target
    autoattack: float | None = None  # under AutoAttack
    source: str = ""  # where the numbers are from

    @classmethod
    def parse(cls, values: dict[str, Any], place: str) -> Published:
        """Check values and return them as published results.

        Args:
            values: The content of `published.toml`.
            place: Name of the file, for error messages.

        Raises:
            ValueError: A key is unknown or a value is not valid.
        """
        known = [f.name for f in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise ValueError(
                    f"{place}: unknown key {name!r}.{nearest(name, known)} "
                    f"Known keys: {', '.join(known)}."
                )
            if name == "source":
                if not isinstance(value, str):
                    raise ValueError(f"{place}: source must be a string, got {value!r}.")
            elif not _is_share(value):
                raise ValueError(
                    f"{place}: {name} must be a number from 0 to 1 (0.62 for 62 %), got {value!r}."
                )
        return cls(**values)

    @classmethod
    def read(cls, folder: Path) -> Published:
        """Read `published.toml` of a run folder; without that file nothing is published.

        Raises:
            ValueError: The file is not valid.
        """
        path = folder / FILE
        if not path.is_file():
            return cls()
        try:
            return cls.parse(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid TOML: {error}.") from None


NO_RESULTS = Published()


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
