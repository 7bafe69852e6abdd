"""Attacks on a defence whose models do not depend on what it is asked: they can be trained before anybody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.best import Best, Found
from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import margin
from saddlepoint.attack.pool import AVERAGE, Over
from saddlepoint.defense import Access, Defense
from saddlepoint.game import Turn
from saddlepoint.game.transductive import Joint


@dataclass(frozen=True)
class Given:
    """FPA and GMSA where Gamma(U) = F_k whatever U is: the models F_0, F_1, ... are given, and each round attacks some of them.

    U_i = argmax_U over_{j in rounds_i} L(F_j, U); the U_i against which the model after the last attacked one errs most is sent
    (Chen et al. 2022, Algorithms 1 and 2; in their released code twelve networks stand for those of TADV).
    """

    name: str
    direct: Joint
    models: tuple[Defense, ...]
    rounds: tuple[Sequence[int], ...]
    over: Over = AVERAGE

    def __post_init__(self) -> None:
        most = max((number for attacked in self.rounds for number in attacked), default=len(self.models))
        if most + 1 >= len(self.models):
            raise ValueError(
                f"{self.name} rehearses with the model after the last it attacks, number {most + 1}, and was given "
                f"{len(self.models)} of them. Give one more model or attack fewer."
            )

    @property
    def needs(self) -> Access:
        return "decision"  # of the defence that is finally asked; the models are the attacker's own

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:  # noqa: ARG002
        best = Best(x, coupled=True)
        for i, attacked in enumerate(self.rounds):
            seat, pool = turn.again(i), [self.models[j] for j in attacked]
            point = self.direct.lasting(self.over.patience(len(pool))).against(pool, seat, x, y, self.over).peak
            turn.meter.charge(turn.rows, 1, 0)
            with torch.no_grad():
                best.offer(point, Goal([self.models[max(attacked) + 1]], y, margin)(point, seat.simulated_coins()))
        return best.found
