"""The fields of the JSON files in a run folder, with types and ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator

from saddlepoint.reading import Fields

_YEAR_9999 = 253402300799  # seconds; the last time that a calendar can show

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, Field(max_length=100_000)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
Rows = Annotated[tuple[Count, ...], Field(min_length=1, max_length=10**7)]


class TargetFields(Fields):
    """`target` of run.json."""

    name: Text
    sha256: Hash


class SpaceFields(Fields):
    """`threat.space` of run.json."""

    p: FiniteFloat | Literal["inf"]
    radius: Annotated[FiniteFloat, Field(ge=0)]


class ThreatFields(Fields):
    """`threat` of run.json."""

    space: SpaceFields


class RunFields(Fields):
    """run.json, in its current schema."""

    kind: Literal["audit", "game"] = "audit"
    passed: dict[str, Any] | None = None
    spec: dict[str, Any] | None
    target: TargetFields
    threat: ThreatFields
    examples: Count
    cells: list[Hash]
    diagnostics: tuple[Hash, ...] = ()
    versions: dict[str, Text]
    data: Text = ""
    seed: int = 0
    unit: Text = ""
    random: bool = False
    device: Text = ""
    reasons: dict[str, Text] = Field(default_factory=dict)
    adversaries: tuple[Any, ...] = ()


class CellFields(Fields):
    """The record of an attack cell or of a measurement."""

    key: Hash
    tensors: Hash
    adversary: Text | None = None
    measurement: Text | None = None
    group: Count = 0
    rows: Rows = (0,)

    @field_validator("rows")
    @classmethod
    def _in_order(cls, rows: tuple[int, ...]) -> tuple[int, ...]:
        if rows[0] > rows[-1]:
            raise ValueError("first and last row in order")
        return rows


class EventFields(Fields):
    """A line of ledger.jsonl."""

    event: Annotated[str, Field(max_length=100)]
    time: Annotated[FiniteFloat, Field(ge=0, le=_YEAR_9999)]
    key: Hash | None = None
    seconds: Seconds | None = None
    run: Text | None = None
    folder: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")] | None = None


class CellEvent(EventFields):
    """A line of ledger.jsonl about a finished cell."""

    key: Hash
    seconds: Seconds
    forward: Count = 0  # passes of all its images; 0 in old ledgers
    backward: Count = 0


class FileFields(Fields):
    """One file of a manifest."""

    sha256: Hash
    bytes: Count


class ManifestFields(Fields):
    """manifest.json."""

    run: Text
    files: dict[Text, FileFields]
    versions: dict[str, Text]
