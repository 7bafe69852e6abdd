"""Adversaries sent one after the other against what still stands."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.attack.space import per_example
from saddlepoint.auditing.result import Row
from saddlepoint.defense import Defense
from saddlepoint.game import Adversary, Episode, Threat, play
from saddlepoint.game.play import Progress


class Campaign:
    """The worst points so far, per unit: examples on their own, batches or the whole stream together.

    An example leaves when the defence is wrong on every draw. Which adversary is worst is read from draws that the accuracy does
    not count (`Episode.chosen`): the least of several noisy numbers is too low.
    """

    def __init__(self, defense: Defense, x: Tensor, y: Tensor, threat: Threat, *, seed: int, batch_size: int) -> None:
        self.defense, self.x, self.y, self.threat, self.seed, self.batch_size = defense, x, y, threat, seed, batch_size
        n = len(x)
        positions = torch.arange(n, device=x.device)
        groups = {"example": positions, "batch": positions // batch_size, "stream": torch.zeros_like(positions)}
        self._group = groups[defense.unit]  # [N]
        self._totals = torch.full((int(self._group.amax()) + 1,), torch.inf, dtype=torch.float64, device=x.device)
        self.points = x
        self.correct = torch.ones(n, dtype=torch.float64, device=x.device)
        self.winner = ["" for _ in range(n)]
        self.rows: list[Row] = []

    def standing(self) -> Tensor:
        """[M] which examples the next adversary is sent to."""
        if self.defense.unit == "example":
            return (self._totals > 0).nonzero()[:, 0]
        return torch.arange(len(self.x), device=self.x.device)

    def send(self, adversary: Adversary, progress: Progress | None = None) -> Row:
        rows = self.standing()
        x, y = self.x[rows], self.y[rows]
        episode = play(
            self.defense, adversary, x, y, self.threat, ids=rows, seed=self.seed, batch_size=self.batch_size, progress=progress
        )  # fmt: skip
        before = float(self.correct.mean()) if self.rows else 1.0
        self._keep(episode, rows)
        after = float(self.correct.mean())
        row = Row(
            name=adversary.name,
            robust_accuracy=after,
            gain=before - after,
            attacked=len(rows),
            forward=float(episode.forward.sum()) / len(self.x),
            backward=float(episode.backward.sum()) / len(self.x),
            seconds=episode.seconds,
            copies=int(episode.copies.sum()),
        )
        self.rows.append(row)
        return row

    def _keep(self, episode: Episode, rows: Tensor) -> None:
        chosen = torch.full_like(self.correct, torch.inf).index_copy(0, rows, episode.chosen[0])
        totals = torch.zeros_like(self._totals).index_add(0, self._group, chosen)
        worse = (totals < self._totals)[self._group]  # [N]
        self._totals = torch.minimum(totals, self._totals)
        self.points = torch.where(per_example(worse, self.x), self.x.index_copy(0, rows, episode.points), self.points)
        self.correct = torch.where(worse, self.correct.index_copy(0, rows, episode.correct[0]), self.correct)
        for i in worse.nonzero()[:, 0].tolist():
            self.winner[i] = episode.adversary
