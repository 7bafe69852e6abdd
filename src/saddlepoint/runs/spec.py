"""The specification of an audit: typed, immutable models, written to and read from `spec.toml`.

Each field is declared once, here or in `saddlepoint.runs.spec_sections`. The options of
`saddlepoint audit`, the command that repeats a run, and the table of options in the documentation
are derived from the fields (`saddlepoint.runs.options`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import Field, ValidationError, model_validator

from saddlepoint.locate import similar_file
from saddlepoint.phrases import count
from saddlepoint.runs.options import Flag
from saddlepoint.runs.spec_errors import SpecError, explain
from saddlepoint.runs.spec_migration import RENAMED, SCHEMA_VERSION, migrate_spec
from saddlepoint.runs.spec_sections import (
    NORMS,
    AllowUnusual,
    AttackSpec,
    BatchSize,
    DataSpec,
    Device,
    EngineChoice,
    PerturbationSpec,
    Section,
    Seed,
    Threads,
    ThreatSpec,
    parse_radius,
)

__all__ = [
    "NORMS",
    "SCHEMA_VERSION",
    "AllowUnusual",
    "AttackSpec",
    "BatchSize",
    "DataSpec",
    "Device",
    "EngineChoice",
    "PerturbationSpec",
    "RunSpec",
    "Section",
    "Seed",
    "SpecError",
    "Threads",
    "ThreatSpec",
    "VersionedSpec",
    "migrate_spec",
    "parse",
    "parse_radius",
    "read",
    "schema",
    "validate",
    "write",
]

_LARGEST = 2**20  # bytes of a specification
_LEVELS = 10  # of nested tables and lists
Spec = TypeVar("Spec", bound=Section)


def _read_attacks(text: str) -> list[dict[str, Any]]:
    from saddlepoint.runs.attack_specs import named

    return [named(name.strip()).model_dump() for name in text.split(",")]


def _write_attacks(attacks: tuple[AttackSpec, ...]) -> str | None:
    """The names of the attacks, or None if one of them is not exactly the attack of its name."""
    from saddlepoint.runs.attack_specs import NAMED, named

    names = [str(attack.name) for attack in attacks]
    known = all(name in NAMED for name in names)
    return ",".join(names) if known and [named(name) for name in names] == [*attacks] else None


class VersionedSpec(Section):
    """What the specifications of audits and of games have in common.

    A specification of an earlier version is accepted and converted (`migrate_spec`).
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    target: Annotated[
        str,
        Field(
            description="Model or defense: 'zoo:NAME', 'file.py:factory' or "
            "'package.module:factory'."
        ),
    ]
    data: DataSpec = DataSpec()

    @model_validator(mode="before")
    @classmethod
    def _current(cls, values: Any) -> Any:
        return migrate_spec(_with_tuples(values)) if isinstance(values, dict) else values


class RunSpec(VersionedSpec):
    """The complete specification of an audit: the same specification gives the same numbers."""

    threat: ThreatSpec = ThreatSpec()
    budget: Annotated[
        Literal["quick", "standard", "thorough"],
        Field(description="Compute budget of the attacks: how many, and how many steps of each."),
        Flag(always=True),
    ] = "standard"
    attacks: Annotated[
        tuple[AttackSpec, ...],
        Field(description="Attacks to run instead of those that the audit selects."),
        Flag(
            metavar="NAMES",
            default="selected from the measured properties of the target",
            help="Attacks to run instead of those that the audit selects, separated by commas: "
            "apgd-ce,apgd-t,square.",
            read=_read_attacks,
            write=_write_attacks,
        ),
    ] = ()
    claim: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Robust accuracy that was reported elsewhere, 0.62 for 62 %. The audit "
            "tests whether it is refuted.",
        ),
        Flag(metavar="ACCURACY"),
    ] = None
    allow_unusual: AllowUnusual = False
    seed: Seed = 0
    batch_size: BatchSize = 128
    device: Device = "cpu"
    threads: Threads = 1
    engine: EngineChoice = "auto"


def parse(values: dict[str, Any], source: str = "the specification") -> RunSpec:
    """The specification of an audit, from plain values.

    Args:
        values: The keys of `spec.toml` with their values.
        source: Where the values are from, for the error message.

    Raises:
        SpecError: The values are not valid. The message has one line for each problem.
    """
    return validate(RunSpec, values, source)


def validate(
    model: type[Spec],
    values: dict[str, Any],
    source: str = "the specification",
    names: Mapping[str, str] | None = None,
) -> Spec:
    """A specification of the given kind, from plain values.

    Args:
        model: `RunSpec`, `GameSpec` or a section of one.
        values: The keys with their values.
        source: Where the values are from, for the error message.
        names: What error messages call a key, for example `{"data.n": "--n"}`.

    Raises:
        SpecError: The values are not valid. The message has one line for each problem.
    """
    try:
        return model.model_validate(_with_tuples(values))
    except ValidationError as error:
        problems = explain(error, model, names=names or {}, renamed=RENAMED)
        raise SpecError("\n".join([f"{source} is not valid:", *problems])) from None


def read(path: Path) -> RunSpec:
    """The specification in a TOML file.

    Raises:
        SpecError: The file does not exist, is not TOML, or is not a valid specification.
    """
    if not path.is_file():
        raise SpecError(f"there is no specification at {path}.{similar_file(path)}")
    if path.stat().st_size > _LARGEST:
        raise SpecError(f"{path} has more than {count(_LARGEST, 'byte')}: it is no specification.")
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}.") from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path} is not valid TOML: byte {error.start} is not UTF-8. Save the file as UTF-8."
        ) from None
    except RecursionError:
        raise SpecError(f"{path} is not valid TOML: its keys are nested too deeply.") from None
    if _is_deep(values):
        raise SpecError(f"{path} is no specification: its keys are nested too deeply.")
    return parse(values, str(path))


def write(spec: VersionedSpec) -> str:
    """The specification as TOML, with all defaults, so that the file is complete."""
    values = spec.model_dump(mode="json", exclude_none=True)
    values["data"].setdefault("n", "all")
    return tomli_w.dumps(values)


def schema() -> dict[str, Any]:
    """JSON schema of `spec.toml`, for editors that check and complete it."""
    return RunSpec.model_json_schema()


def _is_deep(values: Any, levels: int = _LEVELS) -> bool:
    """Whether lists and tables are nested deeper than in any specification."""
    if not isinstance(values, dict | list):
        return False
    inner = values.values() if isinstance(values, dict) else values
    return levels == 0 or any(_is_deep(value, levels - 1) for value in inner)


def _with_tuples(values: Any) -> Any:
    """The same values with tuples for lists: TOML has only lists, the models have tuples."""
    if isinstance(values, dict):
        return {key: _with_tuples(value) for key, value in values.items()}
    return tuple(_with_tuples(v) for v in values) if isinstance(values, list) else values
