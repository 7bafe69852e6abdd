"""Versions of the format of specifications, and how an old specification becomes a current one."""

from __future__ import annotations

from typing import Any, Final

from saddlepoint.runs.spec_errors import SpecError

SCHEMA_VERSION: Final = 2
RENAMED = {  # keys of `threat` in version 1 -> version 2
    "eps": "radius",
    "coins": "randomness",
    "leaking": "state_visible",
    "control": "controlled_fraction",
    "live": "online_queries",
}


def migrate_spec(values: dict[str, Any]) -> dict[str, Any]:
    """A specification of an audit or a game with the keys of the current version.

    Version 2 renamed keys of the section `threat`. A specification that does not state its
    `schema_version` may use the keys of either version: until version 2, files without it were
    common, and `run.json` keeps the arguments as they were passed. A specification of version 2
    is returned as it is, so that an old key in it is found and reported as an error.

    Args:
        values: The specification as it was read from TOML or JSON. It is not changed.

    Raises:
        SpecError: The same option is given by its old and by its new name.
    """
    if values.get("schema_version", 1) != 1:
        return values
    migrated = dict(values)
    if "schema_version" in values:
        migrated["schema_version"] = SCHEMA_VERSION
    if isinstance(values.get("threat"), dict):
        migrated["threat"] = _renamed(values["threat"])
    return migrated


def _renamed(threat: dict[str, Any]) -> dict[str, Any]:
    for old, new in RENAMED.items():
        if old in threat and new in threat:
            raise SpecError(
                f"threat.{old} and threat.{new} are the same option. Keep only threat.{new}."
            )
    return {RENAMED.get(key, key): value for key, value in threat.items()}
