"""Records that outlive the version that wrote them: each says its schema, and older ones are brought up to date on reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Record = dict[str, Any]
Migrations = Mapping[int, Callable[[Record], Record]]  # from this schema to the next


class SchemaError(ValueError):
    """A record that this version cannot read."""


def migrated(record: Record, migrations: Migrations, current: int, place: str) -> Record:
    """The record in the current schema: r_{k+1} = migrations[k](r_k). No `schema` means 0."""
    schema = record.get("schema", 0)
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise SchemaError(
            f"{place} holds a record of schema {schema!r}, expected a whole number up to {current}."
        )
    if schema > current:
        raise SchemaError(
            f"{place} holds a record of schema {schema}; this version of saddlepoint knows schemas up to {current}. "
            "Update saddlepoint, or use another folder."
        )
    while schema < current:
        if schema not in migrations:
            raise SchemaError(
                f"{place} holds a record of schema {schema}, which cannot be brought to {schema + 1}. Run the audit again."
            )
        record = {**migrations[schema](record), "schema": schema + 1}
        schema += 1
    return record
