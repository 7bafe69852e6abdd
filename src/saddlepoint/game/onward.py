"""Climb on from where a search without gradients ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attack.best import Found
from saddlepoint.attack.pgd import PGD, From
from saddlepoint.defense import Defense
from saddlepoint.game.adversary import Direct, Turn
from saddlepoint.game.pursuit import Following


@dataclass(frozen=True)
class Onward(Following):
    """`first`, and where it took nothing `then` from its highest point: gradients that lead nowhere from the image may do there.

    x_0 = peak of first, then the steps of PGD, ever shorter (`From`); its `random_start` does not matter. Only for a deterministic
    defence with independent rows, as `Standing`. Costs both attacks and one answer.
    """

    then: Direct

    def __post_init__(self) -> None:
        if not isinstance(self.then.attack, PGD):
            raise ValueError(f"Onward climbs by PGD, which can start anywhere, got {type(self.then.attack).__name__}.")

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        self.refuse(defense)
        found = self.first.move(turn, defense, x, y)
        rows = (~turn.rehearse(defense, found.point, y).fallen).nonzero()[:, 0]
        if not len(rows):
            return found
        assert isinstance(self.then.attack, PGD), "checked above"
        climb = replace(self.then, attack=From(found.peak[rows], self.then.attack))
        higher = climb.move(turn.restrict(rows), defense.restrict(rows), x[rows], y[rows])
        pairs = ((found.point, higher.point), (found.peak, higher.peak))
        return Found(*(old.index_copy(0, rows, new) for old, new in pairs))
