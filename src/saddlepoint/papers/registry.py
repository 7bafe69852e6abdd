"""The experiments by name: what the paper reports, and which function reproduces it.

Importing this module does not import torch, so listing the experiments is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

if TYPE_CHECKING:
    from saddlepoint.papers.comparison import PaperComparison
    from saddlepoint.papers.result import Result

Scale = Literal["tiny", "small", "real", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
# The scales whose networks are trained here; those of "real" were trained by others.
TRAINED_SCALES: tuple[Scale, ...] = tuple(scale for scale in SCALES if scale != "real")

# New names of experiments and papers, by their former names.
RENAMED: Mapping[str, str] = {
    "multi-exit/honest": "multi-exit/out-of-sample",
    "untold": "blind-audit",
}


def no_progress(message: str) -> None:
    """No-op progress callback."""


@dataclass(frozen=True)
class Request:
    """One requested reproduction.

    Raises:
        ValueError: if the scale is unknown, or if it is "real" and there is no folder of models.
    """

    out: Path  # folder for trained networks and cached attack results; both are reused from there
    scale: Scale = "tiny"  # size of networks, data and attacks
    seed: int = 0
    progress: Callable[[str], None] = no_progress  # progress callback, called with one line of text
    models: Path | None = None  # folder of third-party networks, for the scale "real"
    data: Path | None = None  # folder of the datasets; None: the usual places

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {self.scale!r}.")
        if self.scale == "real" and self.models is None:
            raise ValueError(
                "scale real evaluates networks that others trained. Name a folder that contains "
                "them, with a modules.py that loads them: --models FOLDER."
            )


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper that can be reproduced."""

    name: str  # "paper/table-or-figure"
    title: str
    reports: str  # one sentence: what the paper reports there
    # "module:function", imported when the experiment is run; it maps a Request to a Result.
    function: str
    # "module:function"; it maps a Result to a PaperComparison, from the tables of the result alone.
    comparison: str = ""
    # "module:function" at scale real: with third-party networks, or a result without tables that
    # says what the experiment would cost.
    real: str = ""
    sources: tuple[str, ...] = ()  # further modules that its numbers depend on, such as audits
    probes: tuple[str, ...] = ()  # experiments whose tiny runs check its records; empty: itself

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose sources, and those of their imports, determine its numbers."""
        functions = (one for one in (self.function, self.real) if one)
        return (*(one.partition(":")[0] for one in functions), *self.sources)

    def run(self, request: Request) -> Result:
        """Import the function and run it.

        Args:
            request: scale, seed, output folder and progress callback.

        Returns:
            Tables, charts, findings and costs.

        Raises:
            ValueError: if the experiment is not defined at this scale.
        """
        if request.scale == "real" and not self.real:
            raise ValueError(
                f"{self.name} is not defined at scale real: no third-party network fits it."
            )
        function = self.real if request.scale == "real" else self.function
        return cast("Result", _function(function)(request))

    def compare(self, result: Result) -> PaperComparison | None:
        """Compare a result with the paper's numbers; None if no comparison is defined.

        Results at scale real contain the paper's numbers, but their rows are other networks.
        """
        if not self.comparison or result.scale == "real":
            return None
        return cast("PaperComparison", _function(self.comparison)(result))


def _function(path: str) -> Callable[..., object]:
    module, _, name = path.partition(":")
    return cast("Callable[..., object]", getattr(import_module(module), name))


def select_experiments(name: str, experiments: Mapping[str, Experiment]) -> tuple[Experiment, ...]:
    """Select one experiment by its name, or all experiments of a paper.

    Args:
        name: "multi-exit/table-1" for one experiment, "multi-exit" for all of that paper.
        experiments: all experiments by name.

    Returns:
        The selected experiments in the order of `experiments`.

    Raises:
        ValueError: if nothing has this name; the message suggests the closest name, or says what
            the name was changed to.
    """
    found = tuple(
        experiment
        for experiment in experiments.values()
        if name in (experiment.name, experiment.name.partition("/")[0])
    )
    if found:
        return found
    if new_name := _new_name(name):
        raise ValueError(f"experiment {name!r} was renamed to {new_name!r}. Use the new name.")
    papers = dict.fromkeys(key.partition("/")[0] for key in experiments)
    known = [*experiments, *papers]
    normalized = name.lower().replace("_", "-").replace(" ", "-")
    close = get_close_matches(normalized, known, n=1, cutoff=0.4)
    suggestion = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"unknown experiment {name!r}.{suggestion} Known: {', '.join(known)}.")


def _new_name(name: str) -> str | None:
    """Return what an experiment, or the paper in the first part of its name, was renamed to."""
    if name in RENAMED:
        return RENAMED[name]
    paper, slash, rest = name.partition("/")
    return f"{RENAMED[paper]}{slash}{rest}" if paper in RENAMED else None
