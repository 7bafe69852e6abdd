"""FPA and GMSA on models that are trained before the attack.

This is possible if the adapted models of a defense do not depend on the test batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.ensemble import AVERAGE, LossWeighting
from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation import Adversary, AdversaryProperties, AttackContext, PassCost
from saddlepoint.evaluation.transductive import ModelAttack


@dataclass(frozen=True)
class PretrainedModelSpace(Adversary):
    """FPA and GMSA on a sequence of pretrained models F_0, F_1, ...

    The defense adapts to a test batch U by training a model Gamma(U). Here Gamma(U) = F_k does not
    depend on U. Round i attacks the models `rounds[i]` together, with their losses combined by
    `weighting`:

        U_i = argmax_U weighting_{j in rounds_i} L(F_j, U).

    The model after the last attacked one simulates the defender. The attack returns the U_i on
    which this model makes the most errors. Source: Chen et al. 2022, Algorithms 1 and 2. Their
    released code uses twelve networks for TADV in the same way.
    """

    name: str
    direct: ModelAttack  # attack on one or more models
    models: tuple[Defense, ...]  # at least one more than the rounds attack
    rounds: tuple[Sequence[int], ...]  # per round, the indices of the attacked models
    weighting: LossWeighting = AVERAGE  # how the losses of several models are combined

    def __post_init__(self) -> None:
        last = max(
            (index for attacked in self.rounds for index in attacked), default=len(self.models)
        )
        if last + 1 >= len(self.models):
            raise ValueError(
                f"{self.name} simulates the defender with the model after the last attacked one, "
                f"number {last + 1}, but got only {len(self.models)} models (counted from 0). Pass "
                "one more model or attack fewer."
            )

    @property
    def needs(self) -> Access:
        """Access to the attacked defense; the models belong to the attacker."""
        return "decision"

    def children(self) -> Sequence[Adversary]:
        """The attack on the models."""
        return (self.direct,)

    @property
    def properties(self) -> AdversaryProperties:
        """The properties of a transfer attack on models that the defense may adapt to."""
        return replace(super().properties, transfers=True, anticipates_adaptation=True)

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        """The passes of all rounds, with one forward pass of the simulated defender per round."""
        return PassCost.sum(
            self._attack(len(attacked)).cost().times(len(attacked)).plus_forward(1)
            for attacked in self.rounds
        )

    def move(
        self,
        context: AttackContext,
        defense: Defense,  # noqa: ARG002
        x: Tensor,
        y: Tensor,
    ) -> AttackResult:
        """Attack every round's models and keep the points that are worst for the simulation.

        Args:
            context: threat model and random keys of the attacker.
            defense: the attacked defense; not used.
            x: [N, ...] clean images.
            y: [N] labels.

        Returns:
            The points of the best round, compared as whole batches.
        """
        best = BestSoFar(x, coupled=True)
        for i, attacked in enumerate(self.rounds):
            round_context = context.again(i)
            models = [self.models[j] for j in attacked]
            attack = self._attack(len(models))
            point = attack.against(models, round_context, x, y, self.weighting).max_loss_point
            context.meter.charge(context.rows, 1, 0)
            simulated = AttackObjective([self.models[max(attacked) + 1]], y, margin)
            with torch.no_grad():
                best.update(point, simulated(point, round_context.simulated_keys()))
        return best.result

    def _attack(self, models: int) -> ModelAttack:
        """The attack with as many steps as the weighting needs for this number of models."""
        return self.direct.scaled(self.weighting.step_factor(models))
