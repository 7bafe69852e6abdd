"""The fields of audit.json, with types and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from saddlepoint.audits.catalog import ItemName, SymptomName
from saddlepoint.audits.records import MIGRATIONS, SCHEMA
from saddlepoint.audits.verdict import Level, State
from saddlepoint.reading import Fields, check, json_object, read_bytes
from saddlepoint.schema import migrated

Text = Annotated[str, Field(max_length=100_000)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Amount = Annotated[FiniteFloat, Field(ge=0)]
Count = Annotated[int, Field(ge=0, le=10**12)]


class _Exactly(Fields):
    """A part of the record that has no further fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class IntervalFields(_Exactly):
    """`interval`."""

    low: FiniteFloat
    high: FiniteFloat
    level: Share
    covers: Text = ""


class CurveFields(_Exactly):
    """`rows[].loss_curve`: columns of equal length."""

    passes: tuple[Count, ...] = ()
    images: tuple[Count, ...] = ()
    misclassified: tuple[Share, ...] = ()
    value: tuple[float | None, ...] = ()


class RowFields(_Exactly):
    """One of `rows`."""

    name: Text
    robust_accuracy: Share
    running: Share
    gain: FiniteFloat
    attacked: Count
    forward: Amount
    backward: Amount
    seconds: Amount
    copies: Count
    loss_curve: CurveFields = CurveFields()
    reason: Text = ""
    minimum_norm: bool = False


class SymptomFields(Fields):
    """One of `symptoms`."""

    name: SymptomName
    level: Level
    message: Text


class ItemFields(Fields):
    """One of `checklist`."""

    name: ItemName
    state: State
    evidence: Text


class StaticFields(_Exactly):
    """`compared.static`."""

    clean_accuracy: Share
    robust_accuracy: Share
    only_defense: Count
    only_static: Count
    p: Share


class CostFields(_Exactly):
    """`compared.cost`."""

    calls: Amount
    graded: Amount
    seconds: Amount
    static_seconds: Annotated[FiniteFloat, Field(gt=0)]


class BoundFields(_Exactly):
    """`compared.proven`."""

    accuracy: Share
    method: Text


class ComparedFields(_Exactly):
    """`compared`."""

    claim: Share | None = None
    standard: Share | None = None
    static: StaticFields | None = None
    cost: CostFields | None = None
    proven: BoundFields | None = None


class SpaceFields(Fields):
    """`threat_description.space`."""

    p: FiniteFloat | Literal["inf"]
    radius: Amount
    box: Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)]


class ThreatFields(Fields):
    """`threat_description`; empty in old records."""

    space: SpaceFields | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_space(cls, values: Any) -> Any:
        if isinstance(values, dict) and values and values.get("space") is None:
            raise ValueError("a perturbation set, `space`")
        return values


class StageFields(_Exactly):
    """One of `stages`."""

    name: Text
    seconds: Amount
    forward: Amount
    backward: Amount


class RecognizedFields(_Exactly):
    """One of `recognized`."""

    name: Text
    evidence: Text


class EngineFields(_Exactly):
    """`engine`."""

    form: Text
    reason: Text


class AuditFields(Fields):
    """audit.json, in its current schema."""

    target: Text
    threat: Text
    threat_description: ThreatFields
    budget: Text
    seed: int
    n: Annotated[int, Field(ge=1, le=10**12)]
    clean_accuracy: Share
    robust_accuracy: Share
    interval: IntervalFields
    verdict: Text
    reasons: list[Text]
    checklist: list[ItemFields]
    compared: ComparedFields
    rows: list[RowFields]
    symptoms: list[SymptomFields]
    versions: dict[str, Text]
    winner: list[Text]
    draws: Annotated[int, Field(ge=1)]
    seconds: Amount
    stages: list[StageFields]
    engine: EngineFields
    data: Text
    classes: list[Text]
    command: Text
    run: Text
    recognized: list[RecognizedFields]


def read_record(folder: Path) -> dict[str, Any]:
    """The content of audit.json in its current schema.

    Raises:
        ReadError: A field is missing or has another type.
        SchemaError: A newer version wrote it.
        OSError: It cannot be opened.
    """
    path = folder / "audit.json"
    content = json_object(read_bytes(path), str(path))
    record = migrated(content, MIGRATIONS, SCHEMA, str(folder))
    check(record, AuditFields, str(path))
    return record
