"""Cells: the independent pieces of work of an audit.

An attack cell runs one adversary on one group of examples. All other passes of an audit are
measurements: re-evaluations of worst points, and diagnostics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import (
    Adversary,
    Episode,
    FixedPoints,
    OnExamples,
    SkipMisclassified,
    Threat,
    play,
)
from saddlepoint.phrases import count

AttackCell = tuple[int, int]  # (group of examples, adversary)
Values = Mapping[str, Tensor]  # the result of a measurement


@dataclass(frozen=True)
class Job:
    """What all cells of an audit share."""

    defense: Defense
    x: Tensor
    y: Tensor
    threat: Threat
    seed: int
    batch_size: int
    answers: Mapping[str, Answer] | None = None  # columns scored instead of the defense's answer

    @property
    def groups(self) -> list[Tensor]:
        """Row numbers of each cell: a batch, or the whole stream.

        A stream cannot be split, because its batches depend on earlier ones.
        """
        rows = torch.arange(len(self.x), device=self.x.device)
        if self.defense.unit == "stream":
            return [rows]
        return list(torch.split(rows, self.threat.examples_per_cell(len(rows), self.batch_size)))

    @property
    def unlimited(self) -> Job:
        """The same job without a query limit, since measurements are no queries of an attacker."""
        return replace(self, threat=replace(self.threat, queries=None))

    def play(self, adversary: Adversary, rows: Tensor) -> Episode:
        """Run one adversary on some rows. The result depends on job, adversary and rows only.

        Rows that are misclassified without an attack are skipped, unless points are scored on other
        answers than the defense's own, or the adversary selects its rows itself.
        """
        independent = not self.defense.random and self.defense.unit == "example"
        if (
            self.answers is None
            and independent
            and not isinstance(adversary, FixedPoints | OnExamples)
        ):
            adversary = SkipMisclassified(adversary)
        return self._play(adversary, rows, self.seed)

    def recheck(self, points: Tensor, rows: Tensor) -> Episode:
        """Evaluate points [N, ...] of some rows with new randomness.

        A point that was worst by chance is not worst again. Randomness that the attacker knows
        stays the same, since it is the randomness that counts.
        """
        seed = self.seed if self.threat.randomness_known else self.seed + 1
        return self._play(FixedPoints("verdict", points), rows, seed)

    def _play(
        self, adversary: Adversary, rows: Tensor, seed: int, at_once: int | None = None
    ) -> Episode:
        """Halve the number of rows per batch when memory runs out and rows are independent."""
        at_once = at_once or self.batch_size
        try:
            return play(
                self.defense,
                adversary,
                self.x[rows],
                self.y[rows],
                self.threat,
                answers=self.answers,
                ids=rows,
                seed=seed,
                batch_size=at_once,
            )
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            if self.defense.unit != "example" or min(at_once, len(rows)) == 1:
                raise MemoryError(
                    f"{adversary.name} ran out of memory on {count(len(rows), 'example')}; "
                    "use a smaller batch size."
                ) from error
        return self._play(adversary, rows, seed, max(min(at_once, len(rows)) // 2, 1))


def _out_of_memory(error: Exception) -> bool:
    # On the CPU torch raises a plain RuntimeError.
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


class Measurement(ABC):
    """A cell that is not an attack. Subclasses are frozen dataclasses, so that they have a hash.

    `compute` runs in any process that has the job. The fields are all other inputs.
    """

    @property
    def name(self) -> str:
        """The name shown in progress bars and records."""
        return type(self).__name__

    if TYPE_CHECKING:

        @property
        def rows(self) -> Tensor: ...  # [M] the rows of the data on which the result depends

    @abstractmethod
    def compute(self, job: Job) -> Values:
        """The measured tensors by name, on the CPU."""


@dataclass(frozen=True)
class Recheck(Measurement):
    """Worst points of one group, evaluated again with new randomness."""

    rows: Tensor  # [M]
    points: Tensor  # [M, ...]

    @property
    def name(self) -> str:
        return "re-evaluation"

    def compute(self, job: Job) -> Values:
        whole = job.x.index_copy(0, self.rows, self.points.to(job.x))
        episode = job.recheck(whole, self.rows).to("cpu")
        return {name: getattr(episode, name) for name in _EPISODE_TENSORS}


_EPISODE_TENSORS = tuple(f.name for f in fields(Episode) if f.name not in ("adversary", "seconds"))


def rechecked(values: Values) -> Episode:
    """The episode of a `Recheck`."""
    return Episode(adversary="verdict", seconds=0.0, **values)
