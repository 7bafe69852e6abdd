"""The work of an audit in independent pieces: one adversary on one group of examples is one cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import (
    Adversary,
    Episode,
    FixedPoints,
    OnExamples,
    Outcomes,
    SkipMisclassified,
    Threat,
    play,
)


@dataclass(frozen=True)
class Job:
    """What all cells of an audit share."""

    defense: Defense
    x: Tensor
    y: Tensor
    threat: Threat
    seed: int
    batch_size: int
    answers: Mapping[str, Answer] | None = None  # columns that answer instead of the defense itself

    @property
    def groups(self) -> list[Tensor]:
        """Row numbers that make a cell: a batch, or the whole stream where later batches depend on earlier ones."""
        rows = torch.arange(len(self.x), device=self.x.device)
        return (
            [rows]
            if self.defense.unit == "stream"
            else list(torch.split(rows, self.threat.examples_per_cell(len(rows), self.batch_size)))
        )

    def play(self, adversary: Adversary, rows: Tensor) -> Episode:
        """One cell. It depends on nothing but the job, the adversary and the rows.

        A row that is wrong without an attack needs none, unless its points are scored on other answers than the defense's own; one
        that is sent to chosen rows knows which.
        """
        skips = self.answers is None and not self.defense.random and self.defense.unit == "example"
        if skips and not isinstance(adversary, FixedPoints | OnExamples):
            adversary = SkipMisclassified(adversary)
        return self._play(adversary, rows, self.seed)

    def judge(self, points: Tensor, rows: Tensor) -> Episode:
        """The verdict on given points, with fresh coins: a point that was worst by luck is not worst again.

        Coins that the attacker knows are the coins that count, so they stay.
        """
        return self._play(
            FixedPoints("verdict", points),
            rows,
            self.seed if self.threat.randomness_known else self.seed + 1,
        )

    def _play(
        self, adversary: Adversary, rows: Tensor, seed: int, at_once: int | None = None
    ) -> Episode:
        """Where rows are independent, memory that runs out is no reason to stop: half as many are attacked at a time."""
        at_once = at_once or self.batch_size
        try:
            x = self.x[rows]
            y = self.y[rows]
            return play(
                self.defense,
                adversary,
                x,
                y,
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
                    f"{adversary.name} ran out of memory on {len(rows)} examples; use a smaller batch size."
                ) from error
        return self._play(adversary, rows, seed, max(min(at_once, len(rows)) // 2, 1))


def _out_of_memory(error: Exception) -> bool:
    # On the CPU torch says it with a plain RuntimeError.
    return isinstance(
        error, torch.OutOfMemoryError | MemoryError
    ) or "can't allocate memory" in str(error)


@dataclass(frozen=True)
class Group:
    """All cells of one group of examples, and the verdict on the worst of their points; on the CPU, where kept cells are."""

    outcomes: Outcomes  # [A, 1, M]; the clean images are the first adversary
    points: Tensor  # [M, ...]
    winner: tuple[str, ...]  # [M]
    verdict: Episode

    @classmethod
    def of(cls, job: Job, rows: Tensor, episodes: list[Episode]) -> Group:
        episodes = [episode.to("cpu") for episode in episodes]
        outcomes = Outcomes.of(episodes, ("final",), job.defense.unit)
        strongest = outcomes.strongest()[0]  # [M]
        points = episodes[0].points
        for a, episode in enumerate(episodes):
            points = torch.where(per_example(strongest == a, points), episode.points, points)
        whole = job.x.index_copy(0, rows, points.to(job.x.device))
        winner = tuple(outcomes.adversaries[a] for a in strongest.tolist())
        return cls(outcomes, points, winner, job.judge(whole, rows).to("cpu"))
