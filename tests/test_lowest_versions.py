"""The lowest versions that are tested are those that the package declares."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The bound of torch is lower than what is tested; constraints-lowest.txt says so.
_NOT_TESTED = {"torch"}


def test_the_lowest_versions_are_the_declared_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(
        re.fullmatch(r"([\w-]+)>=([\d.]+)", one).groups() for one in project["dependencies"]
    )  # type: ignore[union-attr]
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned.keys() == bounds.keys()
    for name in bounds.keys() - _NOT_TESTED:
        assert re.fullmatch(rf"{re.escape(bounds[name])}(\.0)*", pinned[name]), name
