"""Attacks on a defense whose models do not depend on what it is asked: they can be trained before anybody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.ensemble import AVERAGE, LossWeighting
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation import AttackContext
from saddlepoint.evaluation.transductive import Joint


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
    over: LossWeighting = AVERAGE

    def __post_init__(self) -> None:
        most = max(
            (number for attacked in self.rounds for number in attacked), default=len(self.models)
        )
        if most + 1 >= len(self.models):
            raise ValueError(
                f"{self.name} rehearses with the model after the last it attacks, number {most + 1}, and was given "
                f"{len(self.models)} of them. Give one more model or attack fewer."
            )

    @property
    def needs(self) -> Access:
        return "decision"  # of the defense that is finally asked; the models are the attacker's own

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:  # noqa: ARG002
        best = BestSoFar(x, coupled=True)
        for i, attacked in enumerate(self.rounds):
            sub_context = context.again(i)
            pool = [self.models[j] for j in attacked]
            point = (
                self.direct.lasting(self.over.patience(len(pool)))
                .against(pool, sub_context, x, y, self.over)
                .max_loss_point
            )
            context.meter.charge(context.rows, 1, 0)
            with torch.no_grad():
                best.offer(
                    point,
                    AttackObjective([self.models[max(attacked) + 1]], y, margin)(
                        point, sub_context.simulated_keys()
                    ),
                )
        return best.found
