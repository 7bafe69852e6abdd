"""Play adversaries against the columns of an exit game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.referee import Progress, play
from saddlepoint.evaluation.threat import Threat


@dataclass(frozen=True)
class DirectPlayer:
    """Plays adversaries in this process, without a cache. It is a `RunAdversaries`."""

    defense: Defense
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    threat: Threat
    answers: Mapping[str, Answer]  # the columns, by name
    seed: int
    batch_size: int
    progress: Progress | None

    def __call__(self, adversaries: Sequence[Adversary]) -> list[Episode]:
        return [self._play(adversary) for adversary in adversaries]

    def _play(self, adversary: Adversary) -> Episode:
        return play(
            self.defense,
            adversary,
            self.x,
            self.y,
            self.threat,
            answers=self.answers,
            seed=self.seed,
            batch_size=self.batch_size,
            progress=self.progress,
        )
