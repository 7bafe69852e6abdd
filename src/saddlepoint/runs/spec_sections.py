"""The sections of a specification: data, threat model and attacks.

Each field is declared here once, with its type, default, description and `Flag`. Everything else
about an option is derived from its field (`saddlepoint.runs.options`).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
)

from saddlepoint.attacks import radius as attacks_radius
from saddlepoint.runs.options import Flag
from saddlepoint.runs.spec_errors import SpecError

LARGEST_RADIUS = 1_000_000  # far beyond any image, and exact in every floating-point type
NORMS = {"linf": math.inf, "l2": 2.0, "l1": 1.0}

# Sections of the help pages.
ATTACKER = "Threat model"
ADAPTIVE = "Threat model of defenses that adapt at test time"
COMPUTATION = "Computation"


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
            # Users of `--eps` may also write `eps` in spec.toml.
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
        parse_radius(text)
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
            description="Whether the attacker knows the random numbers of a randomized defense. "
            "private: no. public: yes. fixed: yes, and they are drawn once and used for every "
            "image and query."
        ),
        Flag(panel=ATTACKER),
    ] = "private"
    draws: Annotated[
        int | None,
        Field(ge=1, description="Number of random draws per evaluation of a randomized defense."),
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
            description="Which misclassified images count, if the attacker controls only a "
            "fraction of a batch: all, or only the benign ones that it does not control."
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

    target_class: Annotated[
        int | None,
        Field(
            ge=0,
            description="The attacker succeeds only if an image becomes this class. Images of this "
            "class are left out.",
        ),
        Flag(panel=ATTACKER, metavar="CLASS", default="any wrong class"),
    ] = None
    mask: Annotated[
        str | None,
        Field(
            description="File .npy with the pixels that the attacker may change: [H, W] or "
            "[C, H, W], not zero where a pixel may change."
        ),
        Flag(panel=ATTACKER, metavar="FILE", default="all pixels"),
    ] = None
    corruption: Annotated[
        str | None,
        Field(
            description="Common corruption of the images before any attack: NAME:SEVERITY, such as "
            "fog:3. With radius 0 it is evaluated alone."
        ),
        Flag(panel=ATTACKER, metavar="NAME:SEVERITY", default="none"),
    ] = None


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
AllowUnusual = Annotated[
    bool,
    Field(
        description="Continue even if the clean accuracy or the radius looks like a mistake: "
        "shifted labels, missing normalization, or a radius of 8 for pixels in [0, 1]."
    ),
    Flag(),
]
Seed = Annotated[
    int,
    Field(ge=-(2**63), lt=2**63, description="Seed of all random numbers."),
    Flag(panel=COMPUTATION, always=True),
]
BatchSize = Annotated[
    int,
    Field(ge=1, le=10**9, description="Number of images that are attacked together."),
    Flag(panel=COMPUTATION, always=True),
]
Device = Annotated[
    str,
    Field(description="Device: cpu, cuda, cuda:1 or mps."),
    Flag(panel=COMPUTATION, metavar="DEVICE"),
]
EngineChoice = Annotated[
    Literal["auto", "off", "channels-last"],
    Field(
        description="Copy of an ordinary net that attacks run on; all points are evaluated on the "
        "net itself. auto: with folded batch normalization, if its outputs stay equal. "
        "channels-last: with this memory layout in any case. off: none."
    ),
    Flag(panel=COMPUTATION),
]
Threads = Annotated[
    int,
    Field(
        ge=1,
        le=1024,
        description="CPU threads per cell. Another number changes the rounding of the results.",
    ),
    Flag(panel=COMPUTATION),
]


def parse_radius(text: str) -> float:
    """Convert a text such as '8/255' or '0.031' to a number.

    Raises:
        SpecError: The text is not a number or fraction from 0 to 1000000.
    """
    try:
        value = attacks_radius.parse_radius(text)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if value > LARGEST_RADIUS:
        raise SpecError(f"the radius must be at most {LARGEST_RADIUS}, got {text[:40]!r}.")
    return value
