"""What is to be run, as a file: `spec.toml` and frozen models, the same thing twice."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

SCHEMA = 1
NORMS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}


class SpecError(ValueError):
    """A specification that cannot be run: which key, what was found, what is possible."""


Spec = TypeVar("Spec", bound="Section")


class Section(BaseModel):
    """A part of a specification: frozen, without conversions, and refusing what it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class DataSpec(Section):
    """Which images."""

    name: Annotated[
        str, Field(description="a source, a path ending in .npz, or 'file.py:function'")
    ] = "digits"
    split: Literal["test", "train"] = "test"
    n: Annotated[
        int | None,
        Field(ge=1),
        BeforeValidator(lambda n: None if n == "all" else n),  # TOML has no null
        WithJsonSchema(
            {
                "anyOf": [{"type": "integer", "minimum": 1}, {"const": "all"}],
                "description": "the first n images, or all",
            }
        ),
    ] = 500
    root: Annotated[str | None, Field(description="the folder that holds the data")] = None


class ThreatSpec(Section):
    """What the attacker may do."""

    norm: Literal["linf", "l2", "l1"] = "linf"
    eps: Annotated[
        str, Field(description="the radius, for pixels in [0, 1]: '8/255' or '0.031'")
    ] = "8/255"
    access: Literal["decision", "score", "gradient"] = "gradient"
    queries: Annotated[
        int | None, Field(ge=1, description="forward passes per example and attack")
    ] = None
    randomness: Annotated[
        Literal["private", "public", "fixed"],
        Field(
            description="the defender's: unknown to the attacker, known, or tossed once for all answers"
        ),
    ] = "private"
    draws: Annotated[
        int | None,
        Field(
            ge=1,
            description="answers by which a random defense is judged; the budget decides by default",
        ),
    ] = None
    rounds: Annotated[
        Literal["many", "one"], Field(description="one: the whole stream is a single batch")
    ] = "many"
    state_visible: Annotated[
        bool, Field(description="does the attacker see what an online defense has become?")
    ] = True
    order: Annotated[
        Literal["natural", "by-label", "searched"],
        Field(description="in which the examples are sent; not natural: the attacker's"),
    ] = "natural"
    window: Annotated[
        int | None, Field(ge=1, description="examples that are ordered together; 256 by default")
    ] = None
    controlled_fraction: Annotated[
        float, Field(gt=0, le=1, description="share of each batch that is the attacker's")
    ] = 1.0
    victims: Annotated[
        Literal["all", "benign"],
        Field(description="whose wrong answers count, where control is below 1"),
    ] = "all"
    online_queries: Annotated[
        bool, Field(description="is an online defense itself asked, which learns from every query?")
    ] = False

    @field_validator("eps")
    @classmethod
    def _readable(cls, text: str) -> str:
        radius(text)
        return text


class AttackSpec(Section):
    """One adversary. Only `kind` is needed; the rest are its usual settings."""

    kind: Literal["fgsm", "pgd", "apgd", "vmi", "fab", "square", "rays", "cw", "fmn"]
    name: str | None = None
    steps: Annotated[int | None, Field(ge=1)] = None
    step_size: Annotated[float | None, Field(gt=0)] = None
    loss: Literal["ce", "margin", "dlr", "pma"] = "margin"
    targets: Annotated[
        int, Field(ge=0, description="classes targeted one by one; 0: untargeted")
    ] = 0
    queries: Annotated[int | None, Field(ge=1, description="of square and rays")] = None
    draws: Annotated[int, Field(ge=1, description="per averaged gradient (EoT)")] = 1
    restarts: Annotated[int, Field(ge=1)] = 1


class RunSpec(Section):
    """An audit, completely: the same spec gives the same numbers."""

    schema_version: Literal[1] = 1
    target: Annotated[
        str, Field(description="'zoo:NAME', 'file.py:factory' or 'package.module:factory'")
    ]
    data: DataSpec = DataSpec()
    threat: ThreatSpec = ThreatSpec()
    budget: Literal["quick", "standard", "thorough"] = "standard"
    attacks: Annotated[
        tuple[AttackSpec, ...], Field(description="instead of the attacks that the budget composes")
    ] = ()
    claim: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="a robust accuracy that somebody claims, 0.62 for 62 %: is it refuted?",
        ),
    ] = None
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1, description="examples per cell")] = 128
    device: str = "cpu"
    threads: Annotated[
        int, Field(ge=1, description="per cell: another number of threads rounds differently")
    ] = 1


def radius(text: str) -> float:
    """'8/255' or '0.031' as a number."""
    top, slash, bottom = text.partition("/")
    try:
        value = float(top) / float(bottom) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise SpecError(f"eps must be a number or a fraction such as 8/255 or 0.031, got {text!r}.")
    return value


def parse(values: dict[str, Any], source: str = "the specification") -> RunSpec:
    """A checked spec, or a `SpecError` that names every key that is wrong."""
    return checked(RunSpec, values, source)


def checked(model: type[Spec], values: dict[str, Any], source: str = "the specification") -> Spec:
    """A specification of that kind."""
    try:
        return model.model_validate(_tuples(values))
    except ValidationError as error:
        raise SpecError(
            "\n".join([f"{source} cannot be run:", *(_explain(e, model) for e in error.errors())])
        ) from None


def read(path: Path) -> RunSpec:
    if not path.is_file():
        raise SpecError(f"there is no specification at {path}.")
    try:
        return parse(tomllib.loads(path.read_text()), str(path))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}.") from None


def write(spec: RunSpec) -> str:
    """The spec as TOML, defaults included, so that the file says everything."""
    values = spec.model_dump(mode="json", exclude_none=True)
    values["data"].setdefault("n", "all")
    return tomli_w.dumps(values)


def schema() -> dict[str, Any]:
    """JSON schema, for editors that check and complete `spec.toml`."""
    return RunSpec.model_json_schema()


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' if something is near, else nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def _tuples(values: Any) -> Any:
    """TOML knows lists only; strict models want tuples."""
    if isinstance(values, dict):
        return {key: _tuples(value) for key, value in values.items()}
    return tuple(_tuples(v) for v in values) if isinstance(values, list) else values


def _explain(error: Any, whole: type[BaseModel]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    model = _model_at(whole, error["loc"][:-1])
    if error["type"] == "extra_forbidden":
        known = list(model.model_fields)
        return f"  {place}: unknown key.{nearest(str(error['loc'][-1]), known)} Known here: {', '.join(known)}."
    if error["type"] == "literal_error":
        hint = nearest(
            str(error["input"]),
            str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", "),
        )
        return f"  {place}: expected {error['ctx']['expected']}, got {error['input']!r}.{hint}"
    return f"  {place}: {error['msg']}, got {error['input']!r}."


def _model_at(whole: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel]:
    if not place:
        return whole
    section: Any = whole.model_fields[str(place[0])].annotation
    found: type[BaseModel] = next(
        iter(get_args(section)), section
    )  # of a section, or of each of several
    return found
