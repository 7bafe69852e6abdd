"""Two rounds at most: the adversaries that were planned, then remedies for what they showed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from saddlepoint.audits.cells import Group, Job
from saddlepoint.audits.diagnostics.trials import Play
from saddlepoint.audits.plan import Evidence
from saddlepoint.audits.remedies.strategies import remedies
from saddlepoint.evaluation import Episode
from saddlepoint.runs.work import Work, torch_threads

Finished = Callable[[str], Episode]  # a cell by its name


class Played(NamedTuple):
    """All that was sent in the end, and what it showed."""

    work: Work
    evidence: Evidence


def rounds(work: Work, finish: Callable[[Work], Finished], play: Play = Job.play) -> Played:
    """What a plan leads to. `finish` computes the cells of a work, or finds them, and says how they are read; `play` plays trials.

    The second round follows from the first: whoever has the same cells asks for the same remedies.
    """
    first = _evidence(work, finish(work), None, play)
    with torch_threads(work.threads):
        found = remedies(work.plan, first)
    if not found:
        return Played(work, first)
    further = work.more(found)
    return Played(further, _evidence(further, finish(further), first, play))


def _evidence(work: Work, finished: Finished, before: Evidence | None, play: Play) -> Evidence:
    count = len(work.plan.adversaries)
    with torch_threads(work.threads):
        groups = [
            Group.of(work.plan.job, rows, [finished(work.keys[g, a]) for a in range(count)])
            for g, rows in enumerate(work.plan.job.groups)
        ]
        return Evidence.of(work.plan, groups, before, play)
