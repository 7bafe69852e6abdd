"""Go on where it nearly worked: a long attack for the few rows that a short one brought close to the edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.best import Found
from saddlepoint.attack.space import per_example
from saddlepoint.defense import Access, Defense
from saddlepoint.game.adversary import Adversary, Cascade, Turn


@dataclass(frozen=True)
class Following:
    """Two attacks, the second for some rows of the first; sent under the name of the first."""

    first: Adversary
    then: Adversary

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def needs(self) -> Access:
        return Cascade(self.name, (self.first, self.then)).needs

    def refuse(self, defense: Defense) -> None:
        """Where coins are tossed or rows answer together, no row can be told apart from the others."""
        if defense.random or defense.unit != "example":
            kind = type(self).__name__
            raise ValueError(f"{kind} needs a deterministic defence with independent rows; send its first adversary alone.")


@dataclass(frozen=True)
class Pursuit(Following):
    """`first` on all rows, then `then` on those that still stand and whose lead fell to at most `within` of what it was.

    The lead of the right class is minus the margin: lead(x) = z_y - max_{j != y} z_j; a row is pursued if
    0 <= lead(x~) <= within lead(x), whatever its neighbours do. Pursuits nest: `then` may be one. Only for a deterministic
    defence with independent rows, as `Standing`. Costs both attacks and three answers.
    """

    within: float  # of the clean lead

    def __post_init__(self) -> None:
        if not 0 < self.within <= 1:
            raise ValueError(f"a pursuit goes on within a share of the clean lead in (0, 1], got within={self.within}.")

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        self.refuse(defense)
        clean = turn.rehearse(defense, x, y).reading.value
        found = self.first.move(turn, defense, x, y)
        held, fallen = turn.rehearse(defense, found.point, y)[:2]
        rows = (~fallen & (held.value >= self.within * clean)).nonzero()[:, 0]
        if not len(rows):
            return found
        # Other coins: the second attack is also another start.
        seat, there = turn.again(1).restrict(rows), defense.restrict(rows)
        chased = self.then.move(seat, there, x[rows], y[rows])
        closer = per_example(seat.rehearse(there, chased.point, y[rows]).reading.value > held.value[rows], x)
        better = (torch.where(closer, new, old[rows]) for new, old in ((chased.point, found.point), (chased.peak, found.peak)))
        return Found(*(old.index_copy(0, rows, new) for old, new in zip((found.point, found.peak), better, strict=True)))
