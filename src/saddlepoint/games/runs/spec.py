"""What game is to be played, completely."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import tomli_w
from pydantic import Field, field_validator

from saddlepoint.runs.spec import DataSpec, Section, radius


class GameThreat(Section):
    """Where the attacker may move an image."""

    norm: Literal["linf", "l2", "l1"] = "linf"
    eps: Annotated[
        str, Field(description="the radius, for pixels in [0, 1]: '8/255' or '0.031'")
    ] = "8/255"

    @field_validator("eps")
    @classmethod
    def _readable(cls, text: str) -> str:
        radius(text)
        return text


class GameSpec(Section):
    """A game on exits, and its strategies on other images: the same spec gives the same numbers."""

    schema_version: Literal[1] = 1
    target: Annotated[
        str, Field(description="'zoo:NAME', 'file.py:factory' or 'package.module:factory'")
    ]
    data: DataSpec = DataSpec()
    threat: GameThreat = GameThreat()
    attack: Literal["fgsm", "pgd-20", "pgd-100", "eot-pgd-20", "vmi-fgsm", "autoattack"] = "pgd-20"
    subsets: Annotated[
        Literal["all", "intervals"],
        Field(description="the sets of exits that may be attacked or answer"),
    ] = "all"
    rows: Annotated[
        Literal["all", "double-oracle"], Field(description="which of them are attacked")
    ] = "all"
    tolerance: Annotated[
        float, Field(gt=0, description="of the double oracle: what another row may still gain")
    ] = 0.003
    split: Annotated[
        float,
        Field(gt=0, lt=1, description="share of the images, the first ones, that build the game"),
    ] = 0.5
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1, description="examples per cell")] = 128
    device: str = "cpu"
    threads: Annotated[
        int, Field(ge=1, description="per cell: another number of threads rounds differently")
    ] = 1


def write(spec: GameSpec) -> str:
    """The spec as TOML, defaults included."""
    values = spec.model_dump(mode="json", exclude_none=True)
    values["data"].setdefault("n", "all")
    return tomli_w.dumps(values)


def command(spec: GameSpec) -> str:
    """The command line that asks for the same game."""
    words = [
        "saddlepoint",
        "game",
        spec.target,
        "--data",
        spec.data.name,
        "--norm",
        spec.threat.norm,
        "--eps",
        spec.threat.eps,
    ]
    words += ["--n", str(spec.data.n)] if spec.data.n is not None else []
    words += [
        "--attack",
        spec.attack,
        "--subsets",
        spec.subsets,
        "--rows",
        spec.rows,
        "--split",
        f"{spec.split!r}",
    ]
    words += ["--tolerance", f"{spec.tolerance!r}"] if spec.rows == "double-oracle" else []
    words += ["--seed", str(spec.seed), "--batch-size", str(spec.batch_size)]
    words += [
        *(["--device", spec.device] if spec.device != "cpu" else []),
        *(["--root", spec.data.root] if spec.data.root else []),
    ]
    return shlex.join(words)
