"""Schema versions of saved records: older records are migrated when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Record = dict[str, Any]
# Entry k converts a record of schema k to schema k + 1.
Migrations = Mapping[int, Callable[[Record], Record]]


class SchemaError(ValueError):
    """This version cannot read the record."""


class NewerSchemaError(SchemaError):
    """A newer version wrote the record."""


def migrated(record: Record, migrations: Migrations, current: int, place: str) -> Record:
    """Migrate a record to the current schema: r_{k+1} = migrations[k](r_k).

    Args:
        record: The record; without the key `schema`, its schema is 0.
        migrations: The conversion from each schema to the next.
        current: The schema of this version.
        place: Where the record was found, for error messages.

    Raises:
        SchemaError: The schema is invalid, newer than `current`, or has no migration.
    """
    schema = record.get("schema", 0)
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise SchemaError(
            f"{place} contains a record of schema {schema!r}, expected a whole number up to "
            f"{current}."
        )
    if schema > current:
        raise NewerSchemaError(
            f"{place} contains a record of schema {schema}; this version of saddlepoint reads "
            f"schemas up to {current}. Update saddlepoint, or use another folder."
        )
    while schema < current:
        if schema not in migrations:
            raise SchemaError(
                f"{place} contains a record of schema {schema}, which cannot be brought to "
                f"{schema + 1}. Run the audit again."
            )
        record = {**migrations[schema](record), "schema": schema + 1}
        schema += 1
    return record
