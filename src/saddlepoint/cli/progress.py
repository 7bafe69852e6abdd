"""The progress of audits and games on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saddlepoint.cli.console import percent
from saddlepoint.runs.progress import ProgressBar

if TYPE_CHECKING:
    from saddlepoint.audits.cells import AttackCell
    from saddlepoint.evaluation import Episode
    from saddlepoint.runs.work import Work


class AuditProgress(ProgressBar):
    """The progress of an audit: the table of attacks before the first of them runs."""

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Start a round. The plan is printed before the first one."""
        if self._shown and not self._names:
            from saddlepoint.cli.audit_output import print_attacks

            print_attacks(work.plan)
        super().begin(work, missing)


class GameProgress(ProgressBar):
    """The progress of a game: one round of attacks after the other.

    The accuracies are those of the column with the lowest and of the one with the highest.
    """

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Start a round. The cells of each round are counted separately."""
        self._counted = set()
        super().begin(work, missing)

    def _accuracy(self, cell: AttackCell, episode: Episode) -> str:  # noqa: ARG002
        accuracy = episode.correct.mean(1)
        lowest = percent(float(accuracy.amin()))
        return f"accuracy {lowest} to {percent(float(accuracy.amax()))} over the columns"
