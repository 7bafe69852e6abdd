"""Cells: the independent pieces of work of an audit.

An attack cell runs one adversary on one group of examples. All other passes of an audit are
measurements: re-evaluations of worst points, and diagnostics.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, overload

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.audits.profile import GIVEN_TARGET, Engine
from saddlepoint.audits.shared_noise import LARGEST_ERROR, PARTS, until_precise
from saddlepoint.defenses import Answer, Defense, Plain
from saddlepoint.defenses.wrapper import innermost
from saddlepoint.evaluation import (
    Adversary,
    AttackContext,
    Episode,
    FixedPoints,
    NaturalOrder,
    OnExamples,
    SkipMisclassified,
    Threat,
    play,
)
from saddlepoint.evaluation.faster_copy import FasterCopy, OnFasterCopy
from saddlepoint.phrases import count

T = TypeVar("T")
_BYTES_PER_CELL = 4 * 2**20  # of images: attacks keep about ten such tensors
# Smaller batches are chosen for large networks, whose passes take nearly all of the time.
_SMALLEST_JOINED = 64
_BATCHES_OF_TWO_CELLS = 4  # fewer make one cell
_SEED_STEP = 104729  # between evaluations with other draws
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
    shared_noise: bool = False  # all images of a batch get the same random draws
    engine: Engine = GIVEN_TARGET  # the form of the defense that attacks run on
    faster: FasterCopy | None = None  # a copy in that form; None: the defense itself

    @property
    def groups(self) -> list[Tensor]:
        """Row numbers of each cell: a batch or several, or the whole stream.

        A stream cannot be split, because its batches depend on earlier ones. The last images belong
        to the window before if they are too few for a batch.
        """
        rows = torch.arange(len(self.x), device=self.x.device)
        if self.defense.unit == "stream":
            return [rows]
        cells = list(torch.split(rows, self.cell_size))
        if self.threat.order.window and len(cells) > 1 and len(cells[-1]) < self.batch_size:
            cells[-2:] = [torch.cat(cells[-2:])]
        return cells

    @cached_property
    def cell_size(self) -> int:
        """Images per cell.

        Long attacks run on few rows of a batch. A cell of an ordinary network with independent rows
        therefore has several batches, so that these rows are attacked together. Each call still has
        at most `batch_size` rows. From four batches on there are at least two cells, for two
        workers.
        """
        size = self.threat.examples_per_cell(len(self.x), self.batch_size)
        independent = not self.defense.random and self.defense.unit == "example"
        ordinary = independent and isinstance(innermost(self.defense), Plain)
        if size != self.batch_size or not ordinary or size < _SMALLEST_JOINED:
            return size
        batches = math.ceil(len(self.x) / size)
        bytes_per_batch = size * self.x[0].numel() * self.x.element_size()
        joined = max(_BYTES_PER_CELL // bytes_per_batch, 1)
        cells = max(math.ceil(batches / joined), 2 if batches >= _BATCHES_OF_TWO_CELLS else 1)
        return size * math.ceil(batches / cells)

    @property
    def unlimited(self) -> Job:
        """The same job without a query limit, since measurements are no queries of an attacker."""
        return replace(self, threat=replace(self.threat, queries=None))

    def play(self, adversary: Adversary, rows: Tensor) -> Episode:
        """Run one adversary on some rows. The result depends on job, adversary and rows only."""
        return self._play(self.as_played(adversary), rows, self.seed)

    def as_played(self, adversary: Adversary) -> Adversary:
        """The adversary as it runs: on a faster copy, and on rows that are classified correctly.

        Rows that are misclassified without an attack are skipped, unless points are scored on other
        answers than the defense's own, or the adversary selects its rows itself.
        """
        # A measurement may replace the defense, of which there is no copy.
        if self.faster is not None and self.faster.given is self.defense:
            adversary = self._on_copy(adversary, self.faster)
        independent = not self.defense.random and self.defense.unit == "example"
        if (
            self.answers is None
            and independent
            and not isinstance(adversary, FixedPoints | OnExamples)
        ):
            adversary = SkipMisclassified(adversary)
        return adversary

    @staticmethod
    def _on_copy(adversary: Adversary, faster: FasterCopy) -> Adversary:
        """The adversary on the copy, inside of the choice of its rows."""
        if isinstance(adversary, FixedPoints):
            return adversary
        if isinstance(adversary, OnExamples):
            return replace(adversary, adversary=OnFasterCopy(adversary.adversary, faster))
        return OnFasterCopy(adversary, faster)

    def recheck(self, points: Tensor, rows: Tensor) -> Episode:
        """Evaluate points [M, ...] of some rows [M] with new randomness.

        A point that was worst by chance is not worst again. Randomness that the attacker knows
        stays the same, since it is the randomness that counts. Where images share their noise, the
        number of draws follows from the variance between draws.
        """
        fixed = _PointsOfRows("verdict", points, rows=rows)
        if self.threat.randomness_known:
            return self._play(fixed, rows, self.seed)
        if not self.shared_noise:
            return self._play(fixed, rows, self.seed + 1)
        draws = max(self.threat.draws // PARTS, 1)
        short = replace(self, threat=replace(self.threat, draws=draws))
        # Errors of other groups are independent of those of these rows.
        error = LARGEST_ERROR * (len(self.x) / len(rows)) ** 0.5
        return until_precise(
            lambda k: short._play(fixed, rows, self.seed + 1 + _SEED_STEP * k), draws, error
        )

    def _play(
        self, adversary: Adversary, rows: Tensor, seed: int, at_once: int | None = None
    ) -> Episode:
        """Halve the number of rows per batch when memory runs out and rows are independent."""
        independent = self.defense.unit == "example"
        # Code of others calls the defense with as many rows as it receives.
        joined = independent and at_once is None and not adversary.properties.external
        at_once = at_once or self.batch_size
        # The order of independent rows has no effect, and they may be fewer than a batch.
        threat = replace(self.threat, order=NaturalOrder()) if independent else self.threat
        try:
            return play(
                self.defense,
                adversary,
                self.x[rows],
                self.y[rows],
                threat,
                answers=self.answers,
                ids=rows,
                seed=seed,
                batch_size=max(self.cell_size, at_once) if joined else at_once,
                rows_per_call=at_once if independent else None,
            )
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if not independent or min(at_once, len(rows)) == 1:
                raise MemoryError(
                    f"{adversary.name} ran out of memory on {count(len(rows), 'example')}; "
                    "use a smaller batch size."
                ) from error
        return self._play(adversary, rows, seed, max(min(at_once, len(rows)) // 2, 1))


@dataclass(frozen=True)
class _PointsOfRows(FixedPoints):
    """Fixed points of some rows only, without a copy of all other images."""

    rows: Tensor = field(kw_only=True)  # [M] the rows of the points

    def move(
        self,
        context: AttackContext,
        defense: Defense,  # noqa: ARG002
        x: Tensor,  # noqa: ARG002
        y: Tensor,  # noqa: ARG002
    ) -> AttackResult:
        assert self.points is not None, "there is a point for each row"
        order = self.rows.argsort()
        place = order[torch.searchsorted(self.rows[order], context.ids)]
        points = self.points[place]
        return AttackResult(points, points)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. On the CPU torch raises a plain RuntimeError."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


def with_fewer_rows(function: Callable[[int], T], rows: int) -> T:
    """The result of a function of a number of rows, which is halved while memory runs out."""
    while True:
        try:
            return function(rows)
        except Exception as error:
            if rows == 1 or not is_out_of_memory(error):
                raise
        rows //= 2


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
        episode = job.recheck(self.points.to(job.x), self.rows).to("cpu")
        return {name: getattr(episode, name) for name in _EPISODE_TENSORS}


_EPISODE_TENSORS = tuple(f.name for f in fields(Episode) if f.name not in ("adversary", "seconds"))


def rechecked(values: Values) -> Episode:
    """The episode of a `Recheck`, without its points, which the caller has."""
    return Episode(adversary="verdict", seconds=0.0, **values).without_points()


class LazyCells(Sequence[Measurement]):
    """Measurements that are made when they are used: the points of all of them take memory.

    Args:
        make: makes one of them, given its number. It may be called several times.
        count: how many there are.
    """

    def __init__(self, make: Callable[[int], Measurement], count: int) -> None:
        self._make = make
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Measurement: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Measurement]: ...
    def __getitem__(self, index: int | slice) -> Measurement | Sequence[Measurement]:
        numbers = range(self._count)[index]
        if isinstance(numbers, int):
            return self._make(numbers)
        return LazyCells(lambda k: self._make(numbers[k]), len(numbers))
