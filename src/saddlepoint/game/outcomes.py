"""The record of a game: correct[adversary, answer, example]. Every table is a reduction of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.space import Ball
from saddlepoint.defense import Answer, Defense, Unit
from saddlepoint.game.adversary import Adversary
from saddlepoint.game.play import Episode, Progress, play
from saddlepoint.game.threat import Threat


@dataclass(frozen=True)
class Outcomes:
    """Who was right, how often, against whom. `chosen` holds draws apart from `correct`, for picking the strongest adversary."""

    adversaries: tuple[str, ...]
    answers: tuple[str, ...]
    correct: Tensor  # [A, D, N] in [0, 1]
    chosen: Tensor  # [A, D, N]; equal to `correct` for a deterministic defence and for public coins
    batch: Tensor  # [N] which examples were answered together
    unit: Unit
    episodes: tuple[Episode, ...] = ()

    @classmethod
    def of(cls, episodes: Sequence[Episode], answers: tuple[str, ...], unit: Unit) -> Outcomes:
        return cls(
            adversaries=tuple(e.adversary for e in episodes),
            answers=answers,
            correct=torch.stack([e.correct for e in episodes]),
            chosen=torch.stack([e.chosen for e in episodes]),
            batch=episodes[0].batch,
            unit=unit,
            episodes=tuple(episodes),
        )

    def first(self, count: int) -> Outcomes:
        """The game as it stood after the first `count` adversaries."""
        return Outcomes(
            self.adversaries[:count],
            self.answers,
            self.correct[:count],
            self.chosen[:count],
            self.batch,
            self.unit,
            self.episodes[:count],
        )

    def accuracy(self) -> Tensor:  # [A, D]
        return self.correct.mean(-1)

    def payoff(self) -> Tensor:
        """[A, D] the attacker's expected gain: the defender's error."""
        return 1 - self.accuracy()

    def strongest(self) -> Tensor:
        """[D, N] which adversary the attacker sends: one per unit, since rows of a batch or stream stand or fall together.

        Picked on draws that do not count: the least of several noisy numbers is too low.
        """
        if self.unit == "example":
            return self.chosen.argmin(0)
        group = self.batch if self.unit == "batch" else torch.zeros_like(self.batch)
        totals = torch.zeros(*self.chosen.shape[:2], int(group.amax()) + 1, dtype=self.chosen.dtype)
        return totals.index_add(2, group, self.chosen.cpu()).argmin(0)[:, group].to(self.chosen.device)

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

    Without `answers` the one column is what the defence itself answers.
    """
    if not adversaries:
        raise ValueError("evaluate needs at least one adversary, such as `Direct('pgd', PGD())`.")
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    episodes = [
        play(defense, a, x, y, threat, answers=answers, seed=seed, batch_size=batch_size, progress=progress) for a in adversaries
    ]
    return Outcomes.of(episodes, ("final",) if answers is None else tuple(answers), defense.unit)
