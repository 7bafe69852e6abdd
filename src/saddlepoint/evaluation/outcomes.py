"""The record of a game: correct[adversary, answer, example]. Every table is a reduction of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Answer, Defense, Unit
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.referee import Episode, Progress, play
from saddlepoint.evaluation.threat import Threat


@dataclass(frozen=True)
class Outcomes:
    """Who was right, how often, against whom. `chosen` holds draws apart from `correct`, for picking the strongest adversary."""

    adversaries: tuple[str, ...]
    answers: tuple[str, ...]
    correct: Tensor  # [A, D, N] in [0, 1]
    chosen: Tensor  # [A, D, N]; equal to `correct` for a deterministic defense and for public coins
    batch: Tensor  # [N] which examples were answered together
    unit: Unit
    episodes: tuple[Episode, ...] = ()

    @classmethod
    def of(cls, episodes: Sequence[Episode], answers: tuple[str, ...], unit: Unit) -> Outcomes:
        # Where each adversary searched an order of its own, no two of them sent the same batches: only whole streams compare.
        if unit == "batch" and any(not torch.equal(e.batch, episodes[0].batch) for e in episodes):
            unit = "stream"
        return cls(
            adversaries=tuple(e.adversary for e in episodes),
            answers=answers,
            correct=torch.stack([e.correct for e in episodes]),
            chosen=torch.stack([e.chosen for e in episodes]),
            batch=episodes[0].batch,
            unit=unit,
            episodes=tuple(episodes),
        )

    def only(self, which: Sequence[int]) -> Outcomes:
        """The game with some of the adversaries alone."""
        return Outcomes(
            tuple(self.adversaries[a] for a in which),
            self.answers,
            self.correct[list(which)],
            self.chosen[list(which)],
            self.batch,
            self.unit,
            tuple(self.episodes[a] for a in which) if self.episodes else (),
        )

    def accuracy(self) -> Tensor:  # [A, D]
        return self.correct.mean(-1)

    def payoff(self) -> Tensor:
        """[A, D] the attacker's expected gain: the defender's error."""
        return 1 - self.accuracy()

    def strongest(self) -> Tensor:
        """[D, N] which adversary the attacker sends: one per unit, since rows of a batch or stream stand or fall together.

        Picked on draws that do not count: the least of several noisy numbers is too low. Among equals the one that came nearest to
        the boundary, or went furthest beyond it: what survives is kept with the point that tried it hardest, not with a clean copy.
        """
        positions = torch.arange(len(self.batch), device=self.batch.device)
        groups = {"example": positions, "batch": self.batch, "stream": torch.zeros_like(self.batch)}
        group = groups[self.unit].to(self.chosen.device)  # [N]
        empty = self.chosen.new_zeros(*self.chosen.shape[:2], int(group.amax()) + 1)  # [A, D, G]
        right = empty.index_add(2, group, self.chosen)
        beyond = empty.index_add(2, group, self._margins())
        return torch.where(right == right.amin(0), beyond, -torch.inf).argmax(0)[:, group]

    def _margins(self) -> Tensor:  # [A, D, N]
        if not self.episodes:
            return torch.zeros_like(self.chosen)
        margins = torch.stack([episode.margin for episode in self.episodes]).to(self.chosen)
        return margins.nan_to_num(
            nan=torch.finfo(margins.dtype).max / len(self.batch)
        )  # an answer that is no number is worst

    def worst_case_per_example(self) -> Tensor:  # [D, N]
        return self.correct.gather(0, self.strongest()[None])[0]

    def worst_case(self) -> Tensor:
        """[D] accuracy against an attacker who sends the strongest adversary to every unit."""
        return self.worst_case_per_example().mean(-1)


def evaluate(
    defense: Defense,
    adversaries: Sequence[Adversary],
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    answers: Mapping[str, Answer] | None = None,
    seed: int = 0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> Outcomes:
    """Every adversary against every answer, on every example: adversaries x answers -> Outcomes.

    Without `answers` the one column is what the defense itself answers.
    """
    if not adversaries:
        raise ValueError("evaluate needs at least one adversary, such as `Direct('pgd', PGD())`.")
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    episodes = [
        play(
            defense,
            a,
            x,
            y,
            threat,
            answers=answers,
            seed=seed,
            batch_size=batch_size,
            progress=progress,
        )
        for a in adversaries
    ]
    return Outcomes.of(episodes, ("final",) if answers is None else tuple(answers), defense.unit)
