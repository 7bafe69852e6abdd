"""An adversary that is sent to some examples only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.best import Found
from saddlepoint.defense import Access, Defense
from saddlepoint.game.adversary import Adversary, Turn


@dataclass(frozen=True)
class Among:
    """The adversary sent to the examples whose ids are given; elsewhere the clean image is proposed, and nothing is spent.

    Rows that answer together are attacked together: a batch that holds one of the examples is attacked as a whole.
    """

    name: str
    adversary: Adversary
    ids: tuple[int, ...]

    @property
    def needs(self) -> Access:
        return self.adversary.needs

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        meant = torch.isin(turn.ids, torch.tensor(self.ids, device=turn.ids.device))
        if not meant.any():
            return Found(x, x)
        if defense.unit != "example" or meant.all():
            return self.adversary.move(turn, defense, x, y)
        rows = meant.nonzero()[:, 0]
        found = self.adversary.move(turn.restrict(rows), defense.restrict(rows), x[rows], y[rows])
        return Found(x.index_copy(0, rows, found.point), x.index_copy(0, rows, found.peak))
