"""Experiments by name: what a paper reports, and where the code that does it again is. Nothing here waits for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

if TYPE_CHECKING:
    from saddlepoint.papers.result import Result

Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)


def silent(message: str) -> None:
    """Whoever is told nothing."""


@dataclass(frozen=True)
class Request:
    """One reproduction: how large, from which seed, and the folder in which networks and episodes are kept and found again."""

    out: Path
    scale: Scale = "tiny"
    seed: int = 0
    say: Callable[[str], None] = silent  # told in a line what is being done

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"the scale is one of {', '.join(SCALES)}, got {self.scale!r}.")


@dataclass(frozen=True)
class Experiment:
    """A table or figure that can be made again."""

    name: str  # "paper/what"
    title: str
    reports: str  # what the paper reports there, in a sentence
    home: str  # "module:function", imported when it is run: a function from a Request to a Result

    def run(self, request: Request) -> Result:
        module, _, function = self.home.partition(":")
        return cast("Result", getattr(import_module(module), function)(request))


def chosen(name: str, experiments: Mapping[str, Experiment]) -> tuple[Experiment, ...]:
    """The experiment of that name, or all of a paper: "multi-exit/table-1", "multi-exit"."""
    found = tuple(
        one
        for one in experiments.values()
        if one.name == name or one.name.partition("/")[0] == name
    )
    if found:
        return found
    known = [*experiments, *dict.fromkeys(one.partition("/")[0] for one in experiments)]
    near = get_close_matches(
        name.lower().replace("_", "-").replace(" ", "-"), known, n=1, cutoff=0.4
    )
    advice = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no experiment is called {name!r}.{advice} Known: {', '.join(known)}.")
