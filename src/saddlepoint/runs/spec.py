"""The specification of an audit: typed, immutable models, written to and read from `spec.toml`.

Each field is declared here once, with its type, default, description and `Flag`. The options of
`saddlepoint audit`, the command that repeats a run, and the table of options in the documentation
are derived from the fields (`saddlepoint.runs.options`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from saddlepoint.runs.options import Flag
from saddlepoint.runs.spec_errors import SpecError, explain, nearest
from saddlepoint.runs.spec_migration import RENAMED, SCHEMA_VERSION, migrate_spec

__all__ = [
    "COMPUTATION",
    "NORMS",
    "SCHEMA_VERSION",
    "AttackSpec",
    "DataSpec",
    "PerturbationSpec",
    "RunSpec",
    "Section",
    "SpecError",
    "ThreatSpec",
    "VersionedSpec",
    "checked",
    "migrate_spec",
    "nearest",
    "parse",
    "radius",
    "read",
    "schema",
    "write",
]

NORMS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}

# Sections of the help pages.
ATTACKER = "Threat model"
ADAPTIVE = "Threat model of defenses that adapt at test time"
COMPUTATION = "Computation"

Spec = TypeVar("Spec", bound="Section")


class Section(BaseModel):
    """A part of a specification: immutable, without type conversions, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _read_count(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"--n must be a whole number or 'all', got {text!r}.") from None


def _write_count(count: int | None) -> str:
    return "all" if count is None else str(count)


def _read_attacks(text: str) -> list[dict[str, Any]]:
    from saddlepoint.runs.attack_specs import named

    return [named(name.strip()).model_dump() for name in text.split(",")]


def _write_attacks(attacks: tuple[AttackSpec, ...]) -> str | None:
    """The names of the attacks, or None if one of them is not exactly the attack of its name."""
    from saddlepoint.runs.attack_specs import NAMED, named

    names = [str(attack.name) for attack in attacks]
    known = all(name in NAMED for name in names)
    return ",".join(names) if known and [named(name) for name in names] == [*attacks] else None


class DataSpec(Section):
    """Which images are evaluated."""

    name: Annotated[
        str,
        Field(
            description="Data set: a name from `saddlepoint data list`, a .npz file, or "
            "'file.py:function'."
        ),
        Flag("--data", metavar="DATA", always=True),
    ] = "digits"
    split: Annotated[
        Literal["test", "train"],
        Field(description="Split of the data set."),
        Flag("--data-split"),
    ] = "test"
    n: Annotated[
        int | None,
        Field(ge=1, description="Number of images, from the first on, or 'all'."),
        BeforeValidator(lambda n: None if n == "all" else n),  # TOML has no null
        WithJsonSchema(
            {
                "anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}],
                "description": "Number of images, from the first on, or 'all'.",
            }
        ),
        Flag(
            metavar="N",
            default="500 of a named data set, all of your own",
            always=True,
            read=_read_count,
            write=_write_count,
        ),
    ] = 500
    root: Annotated[
        str | None,
        Field(description="Folder that contains the data sets."),
        Flag(metavar="FOLDER", default="$SADDLEPOINT_DATA, or the cache folder of the user"),
    ] = None


class PerturbationSpec(Section):
    """The set of allowed perturbations."""

    norm: Annotated[
        Literal["linf", "l2", "l1"],
        Field(description="Norm that measures the size of a perturbation."),
        Flag(always=True),
    ] = "linf"
    radius: Annotated[
        str,
        Field(
            description="Radius of the perturbation set (epsilon in the literature), for pixels "
            "in [0, 1]: a fraction such as 8/255 or a number such as 0.031.",
            # A reader who knows `--eps` may also write `eps` in spec.toml.
            validation_alias=AliasChoices("radius", "eps"),
        ),
        Flag("--eps", metavar="RADIUS", default="linf 8/255, l2 0.5, l1 12", always=True),
    ] = "8/255"

    @property
    def eps(self) -> str:
        """Another name for `radius`."""
        return self.radius

    @field_validator("radius")
    @classmethod
    def _is_number(cls, text: str) -> str:
        radius(text)
        return text


class ThreatSpec(PerturbationSpec):
    """What the attacker can do and know."""

    access: Annotated[
        Literal["decision", "score", "gradient"],
        Field(
            description="What the attacker observes: predicted classes, scores (logits), or "
            "gradients as well."
        ),
        Flag(panel=ATTACKER),
    ] = "gradient"
    queries: Annotated[
        int | None,
        Field(ge=1, description="Largest number of forward passes per image and attack."),
        Flag(panel=ATTACKER, default="unlimited"),
    ] = None
    randomness: Annotated[
        Literal["private", "public", "fixed"],
        Field(
            description="Who knows the random numbers of a randomized defense. private: only the "
            "defender. public: the attacker too. fixed: they are drawn once, used for every "
            "image, and known to the attacker."
        ),
        Flag(panel=ATTACKER),
    ] = "private"
    draws: Annotated[
        int | None,
        Field(ge=1, description="Random draws over which a randomized defense is evaluated."),
        Flag(panel=ATTACKER, default="set by the budget"),
    ] = None
    rounds: Annotated[
        Literal["many", "one"],
        Field(
            description="many: the defense receives the images batch by batch. one: it receives "
            "all images as a single batch."
        ),
        Flag(panel=ADAPTIVE),
    ] = "many"
    state_visible: Annotated[
        bool,
        Field(description="Whether the attacker observes the current state of an online defense."),
        Flag(
            "--hidden-state",
            panel=ADAPTIVE,
            help="The attacker cannot observe the current state of an online defense.",
        ),
    ] = True
    order: Annotated[
        Literal["natural", "by-label", "searched"],
        Field(
            description="Order of the images. natural: as in the data. by-label: sorted by true "
            "label. searched: the worst order that the attacker finds."
        ),
        Flag(panel=ADAPTIVE),
    ] = "natural"
    window: Annotated[
        int | None,
        Field(ge=1, description="Number of images that are reordered together."),
        Flag(panel=ADAPTIVE, default="256, if the order is not natural"),
    ] = None
    controlled_fraction: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Fraction of each batch that the attacker controls. The other images "
            "stay clean.",
        ),
        Flag(panel=ADAPTIVE, metavar="FRACTION"),
    ] = 1.0
    victims: Annotated[
        Literal["all", "benign"],
        Field(
            description="Images whose misclassification counts, if the attacker controls only "
            "a fraction: all, or only the benign ones that it does not control."
        ),
        Flag(panel=ADAPTIVE),
    ] = "all"
    online_queries: Annotated[
        bool,
        Field(
            description="Every query goes to the deployed online defense, which adapts to it. "
            "Needs access 'score' or 'decision'."
        ),
        Flag(panel=ADAPTIVE),
    ] = False


class AttackSpec(Section):
    """One attack. Only `kind` is required; the other fields have the usual settings."""

    kind: Literal["fgsm", "pgd", "apgd", "vmi", "fab", "square", "rays", "cw", "fmn"]
    name: Annotated[str | None, Field(description="Name in tables; by default the kind.")] = None
    steps: Annotated[int | None, Field(ge=1, description="Number of gradient steps.")] = None
    step_size: Annotated[
        float | None, Field(gt=0, description="Size of a step of PGD, in units of the norm.")
    ] = None
    loss: Annotated[
        Literal["ce", "margin", "dlr", "pma"], Field(description="Loss that is increased.")
    ] = "margin"
    targets: Annotated[
        int, Field(ge=0, description="Number of target classes, tried in turn; 0: untargeted.")
    ] = 0
    queries: Annotated[
        int | None, Field(ge=1, description="Number of queries per image of Square and RayS.")
    ] = None
    draws: Annotated[
        int, Field(ge=1, description="Random draws that are averaged in each gradient (EoT).")
    ] = 1
    restarts: Annotated[int, Field(ge=1, description="Number of random restarts.")] = 1


# Fields that audits and games share.
Seed = Annotated[
    int,
    Field(description="Seed of all random numbers."),
    Flag(panel=COMPUTATION, always=True),
]
BatchSize = Annotated[
    int,
    Field(ge=1, description="Number of images that are attacked together."),
    Flag(panel=COMPUTATION, always=True),
]
Device = Annotated[
    str,
    Field(description="Device: cpu, cuda, cuda:1 or mps."),
    Flag(panel=COMPUTATION, metavar="DEVICE"),
]
Threads = Annotated[
    int,
    Field(
        ge=1,
        description="CPU threads per cell. Another number changes the rounding of the results.",
    ),
    Flag(panel=COMPUTATION),
]


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
    seed: Seed = 0
    batch_size: BatchSize = 128
    device: Device = "cpu"
    threads: Threads = 1


def radius(text: str) -> float:
    """The number that a text such as '8/255' or '0.031' stands for.

    Raises:
        SpecError: The text is not a finite number or fraction of at least 0.
    """
    top, slash, bottom = text.partition("/")
    try:
        value = float(top) / float(bottom) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise SpecError(
            f"the radius must be a number or a fraction such as 8/255 or 0.031, got {text!r}."
        )
    return value


def parse(values: dict[str, Any], source: str = "the specification") -> RunSpec:
    """The specification of an audit, from plain values.

    Args:
        values: The keys of `spec.toml` with their values.
        source: Where the values are from, for the error message.

    Raises:
        SpecError: The values are not valid. The message has one line for each problem.
    """
    return checked(RunSpec, values, source)


def checked(
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
        raise SpecError(f"there is no specification at {path}.")
    try:
        return parse(tomllib.loads(path.read_text()), str(path))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}.") from None


def write(spec: VersionedSpec) -> str:
    """The specification as TOML, with all defaults, so that the file is complete."""
    values = spec.model_dump(mode="json", exclude_none=True)
    values["data"].setdefault("n", "all")
    return tomli_w.dumps(values)


def schema() -> dict[str, Any]:
    """JSON schema of `spec.toml`, for editors that check and complete it."""
    return RunSpec.model_json_schema()


def _with_tuples(values: Any) -> Any:
    """The same values with tuples for lists: TOML has only lists, the models have tuples."""
    if isinstance(values, dict):
        return {key: _with_tuples(value) for key, value in values.items()}
    return tuple(_with_tuples(v) for v in values) if isinstance(values, list) else values
