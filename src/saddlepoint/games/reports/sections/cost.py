"""The cost of a game in forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass

from saddlepoint.games.runs.record import AdversaryRecord, GameRecord
from saddlepoint.phrases import count
from saddlepoint.reports.context import Section
from saddlepoint.reports.document import legend, muted, table
from saddlepoint.reports.markup import tag
from saddlepoint.reports.stacked_bars import StackedBar, stacked_bars

_HEAD = (
    "part",
    "attacks",
    "forward, per image",
    "backward, per image",
    "passes in total",
    "clean copies",
    "seconds",
)


def cost(record: GameRecord) -> Section:
    """Show the passes that were spent on building the game and on the held-out images."""
    # The first held-out row is the clean images, which are not an attack: all are clean copies.
    held_out = record.scored_rows
    parts = (
        _Part("building the game", record.rows, record.rows, record.built_on),
        _Part("held-out images", held_out, held_out[1:], record.scored_on),
    )
    explanation = (
        f"In total {count(round(sum(part.total for part in parts)), 'pass')} through the network "
        f"and {record.seconds:,.1f} seconds of wall-clock time since the run was last started or "
        "resumed. One pass gives the logits of all exits, so it evaluates every column."
    )
    rows = [
        StackedBar(part.name, part.forward, part.backward, f"{part.forward + part.backward:,.0f}")
        for part in parts
    ]
    figure = tag(
        "div",
        legend(primary="forward", secondary="backward"),
        stacked_bars(rows, title="Passes per image"),
        class_="card",
    )
    return Section("Cost", (figure, muted(explanation), table(_HEAD, map(_line, parts))))


@dataclass(frozen=True)
class _Part:
    """One part of a run."""

    name: str
    rows: tuple[AdversaryRecord, ...]  # all rows, for the passes
    attacks: tuple[AdversaryRecord, ...]  # the rows that can return clean copies
    images: int

    @property
    def forward(self) -> float:
        """Forward passes per image."""
        return sum(row.forward for row in self.rows)

    @property
    def backward(self) -> float:
        """Backward passes per image."""
        return sum(row.backward for row in self.rows)

    @property
    def total(self) -> float:
        """Passes over all images."""
        return (self.forward + self.backward) * self.images


def _line(part: _Part) -> tuple[str, ...]:
    return (
        part.name,
        str(len(part.rows)),
        f"{part.forward:,.1f}",
        f"{part.backward:,.1f}",
        f"{part.total:,.0f}",
        str(sum(row.copies for row in part.attacks)),
        f"{sum(row.seconds for row in part.rows):,.1f}",
    )
