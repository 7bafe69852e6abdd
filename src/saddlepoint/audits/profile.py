"""What an audit cost: seconds and passes by stage and by attack."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple, get_args

from saddlepoint.passes import PassCount, count_passes

EngineOption = Literal["auto", "off", "channels-last"]
ENGINE_OPTIONS: tuple[EngineOption, ...] = get_args(EngineOption)


class Stage(StrEnum):
    """The six stages of an audit (`saddlepoint.audits.pipeline`), and what follows them."""

    PROBE = "probe"
    PLAN = "plan"
    ATTACK = "attack"
    DIAGNOSE = "diagnose"
    REMEDY = "remedy"
    CONCLUDE = "conclude"
    STORE = "store"
    REPORT = "report"


@dataclass(frozen=True)
class CostEntry:
    """The cost of a stage or of an attack."""

    name: str
    seconds: float  # wall-clock time, summed over workers
    forward: float  # passes per image of the whole set
    backward: float


@dataclass(frozen=True)
class Engine:
    """The form of the target that attacks ran on (`saddlepoint.engine`), and why."""

    form: str = "plain"  # "plain": the given target itself
    reason: str = "it was not chosen"  # part of a sentence

    def __str__(self) -> str:
        if self.form == "plain":
            return f"Attacks ran on the given target: {self.reason}."
        return (
            f"Attacks ran on a copy of the net ({self.form}: {self.reason}) with the same outputs "
            "and gradients up to rounding. All points were evaluated on the given net."
        )


GIVEN_TARGET = Engine()


@dataclass(frozen=True)
class Profile:
    """The cost of an audit by stage and by attack.

    Attacks are part of the stages `attack` and `remedy`. These two and `diagnose` are sums over all
    cells, also over those of an earlier start of the same run. All other stages are those of the
    last start.
    """

    stages: tuple[CostEntry, ...]
    attacks: tuple[CostEntry, ...]
    engine: Engine = GIVEN_TARGET

    @property
    def seconds(self) -> float:
        """Seconds of all stages together."""
        return sum(stage.seconds for stage in self.stages)

    def lines(self) -> Iterator[tuple[str, str, str, str]]:
        """Name, seconds, and forward and backward passes per image: a table as text."""
        for entry in (*self.stages, *self.attacks):
            indent = "  " if entry in self.attacks else ""
            yield (
                f"{indent}{entry.name}",
                f"{entry.seconds:,.2f}",
                f"{entry.forward:,.1f}",
                f"{entry.backward:,.1f}",
            )

    def __str__(self) -> str:
        head = ("stage or attack", "seconds", "forward", "backward")
        rows = [head, *self.lines()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
        lines = []
        for name, *numbers in rows:
            cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        return "\n".join([*lines, str(self.engine)])


class Spent(NamedTuple):
    """Time and passes of a part of an audit."""

    seconds: float = 0.0  # wall-clock time
    passes: PassCount = PassCount()  # summed over images


@dataclass
class Stopwatch:
    """Adds up seconds and passes by stage while an audit runs."""

    totals: dict[Stage, Spent] = field(default_factory=dict)

    def add(self, stage: Stage, spent: Spent) -> None:
        """Add to a stage."""
        before = self.totals.get(stage, Spent())
        self.totals[stage] = Spent(before.seconds + spent.seconds, before.passes + spent.passes)

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[None]:
        """Add the time and the passes of a `with` block to a stage."""
        started = time.perf_counter()
        with count_passes() as counter:
            try:
                yield
            finally:
                self.add(stage, Spent(time.perf_counter() - started, counter.total))

    def entries(self, images: int) -> tuple[CostEntry, ...]:
        """One entry per stage that was run, in the order of the stages.

        Args:
            images: the number of images of the audit.
        """
        return tuple(self._entries(images))

    def _entries(self, images: int) -> Iterable[CostEntry]:
        for stage in Stage:
            if stage in self.totals:
                spent = self.totals[stage]
                forward = spent.passes.forward / images
                yield CostEntry(stage.value, spent.seconds, forward, spent.passes.backward / images)
