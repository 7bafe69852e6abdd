"""The specification of a game between an attacker and a defender that choose exits of a network.

The options of `saddlepoint game` are derived from its fields, like those of `saddlepoint audit`.
It is in this package, not in `saddlepoint.games`, so that `saddlepoint game --help` does not import
torch.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

from pydantic import Field

from saddlepoint.runs.options import Flag, option_words
from saddlepoint.runs.spec import (
    AllowUnusual,
    BatchSize,
    Device,
    PerturbationSpec,
    Seed,
    Threads,
    VersionedSpec,
)


class GameThreat(PerturbationSpec):
    """The perturbations that the attacker of the game may use."""


class GameSpec(VersionedSpec):
    """The complete specification of a game: the same specification gives the same numbers."""

    threat: GameThreat = GameThreat()
    attack: Annotated[
        Literal["fgsm", "pgd-20", "pgd-100", "eot-pgd-20", "vmi-fgsm", "autoattack"],
        Field(description="Attack that is run against each subset of exits."),
        Flag(always=True),
    ] = "pgd-20"
    subsets: Annotated[
        Literal["all", "intervals"],
        Field(
            description="Subsets of exits that can be attacked or used for the prediction. all: "
            "every subset. intervals: only runs of neighboring exits."
        ),
        Flag(always=True),
    ] = "all"
    rows: Annotated[
        Literal["all", "double-oracle"],
        Field(
            description="Subsets that are attacked. all: every one. double-oracle: only those "
            "that change the equilibrium, found one by one."
        ),
        Flag(always=True),
    ] = "all"
    tolerance: Annotated[
        float,
        Field(
            gt=0,
            description="The double oracle stops when another row is expected to lower the "
            "accuracy by less than this.",
        ),
        Flag(metavar="ACCURACY"),
    ] = 0.003
    split: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="Fraction of the images, from the first on, that the game is built on. "
            "The strategies are scored on the other images.",
        ),
        Flag(metavar="FRACTION", always=True),
    ] = 0.5
    allow_unusual: AllowUnusual = False
    seed: Seed = 0
    batch_size: BatchSize = 128
    device: Device = "cpu"
    threads: Threads = 1


def game_command(spec: GameSpec) -> str:
    """The command line that plays the same game again."""
    words = option_words(spec)
    assert words is not None, "every field of a game has an option"
    return shlex.join(["saddlepoint", "game", spec.target, *words])
