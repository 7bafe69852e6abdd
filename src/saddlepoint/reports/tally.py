"""Count the finished cells of a run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.audits.cells import AttackCell
from saddlepoint.evaluation import Episode, OnExamples
from saddlepoint.runs.eta import CLEAN, TimeEstimate
from saddlepoint.runs.work import Work


class AdversaryResult(NamedTuple):
    """The result of one adversary so far."""

    correct: float  # images still classified correctly; fractional for several draws
    images: int  # evaluated under this adversary
    cells: int  # finished


@dataclass
class Tally:
    """The results of the finished cells. It is mutable: each finished cell is added to it."""

    work: Work
    correct: dict[AttackCell, Tensor]  # [M] per finished cell: share of draws classified correctly
    forward: dict[int, int]  # passes by adversary
    backward: dict[int, int]
    # In passes: unlike seconds, they are known for cells of other processes, too.
    estimate: TimeEstimate

    @classmethod
    def of(cls, work: Work) -> Tally:
        """Return the tally of a run without finished cells."""
        sizes = [len(rows) for rows in work.plan.job.groups]
        return cls(work, {}, {}, {}, TimeEstimate([(a, sizes[g]) for g, a in work.plan.cells]))

    @property
    def passes(self) -> int:
        """Forward and backward passes of all finished cells."""
        return sum(self.forward.values()) + sum(self.backward.values())

    def passes_left(self) -> float:
        """Estimate the passes to go from the mean of each adversary; inf while unknown."""
        return self.estimate.left(self.passes)

    def add(self, cell: AttackCell, episode: Episode) -> None:
        """Add a finished cell; a cell that was added before is ignored."""
        if cell in self.correct:
            return
        _, adversary = cell
        forward = int(episode.forward.sum())
        backward = int(episode.backward.sum())
        self.correct[cell] = episode.correct[0].cpu()
        self.forward[adversary] = self.forward.get(adversary, 0) + forward
        self.backward[adversary] = self.backward.get(adversary, 0) + backward
        self.estimate.add(adversary, len(episode.size), forward + backward)

    def missing(self) -> list[AttackCell]:
        """Return the cells that are not finished."""
        return [cell for cell in self.work.plan.cells if cell not in self.correct]

    def unbroken(self) -> tuple[float, int]:
        """Count images that are classified correctly in the worst case over all adversaries.

        If predictions depend on the batch, the worst adversary is chosen for whole groups of
        images, as in the verdict.

        Returns:
            The number of unbroken images, and the number of images attacked so far.
        """
        groups: dict[int, list[Tensor]] = {}
        attacked = {group for group, adversary in self.correct if adversary != CLEAN}
        for (group, _), correct in self.correct.items():
            groups.setdefault(group, []).append(correct)
        per_example = self.work.plan.job.defense.unit == "example"
        unbroken = sum(_worst_case(groups[group], per_example) for group in attacked)
        return unbroken, sum(len(groups[group][0]) for group in attacked)

    def against(self, adversary: int) -> AdversaryResult:
        """Return the result of one adversary so far."""
        finished = {
            group: correct for (group, a), correct in self.correct.items() if a == adversary
        }
        evaluated = [self._evaluated(adversary, group, c) for group, c in finished.items()]
        return AdversaryResult(
            sum(float(correct.sum()) for correct in evaluated),
            sum(len(correct) for correct in evaluated),
            len(finished),
        )

    def _evaluated(self, adversary: int, group: int, correct: Tensor) -> Tensor:
        """Select the images of a group that the adversary attacked; most adversaries attack all."""
        attack = self.work.plan.adversaries[adversary]
        if not isinstance(attack, OnExamples):
            return correct
        ids = self.work.plan.job.groups[group].cpu()
        return correct[torch.isin(ids, torch.tensor(attack.ids))]


def _worst_case(results: list[Tensor], per_example: bool) -> float:
    """Count correct images [M] of one group in the worst case over its finished adversaries."""
    if not per_example:
        return min(float(correct.sum()) for correct in results)
    worst = results[0]
    for correct in results[1:]:
        worst = worst.minimum(correct)
    return float(worst.sum())
