"""Adversaries for networks with several exits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Access, Defense, Subset, subset_name
from saddlepoint.evaluation.adversary import (
    Adversary,
    AdversaryWrapper,
    known_costs,
    strongest_need,
)
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.combinators import MaxLossPoint
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.games.exit_views import MeanOfExits, has_exits

_DRAW = 7  # separates the draw of an adversary from the keys with which it starts


@dataclass(frozen=True)
class MaxAverage(Adversary):
    """For each example the candidate with the largest loss averaged over all exits.

    Xu et al., Eq. 3; Hu et al. 2020, where the candidates are attacks on the single exits. The
    candidate with the largest average loss need not be the best against a particular subset.

    Args:
        name: the name shown in tables.
        candidates: at least one adversary.
        loss: the loss that is averaged over exits; default: cross-entropy.
    """

    name: str
    candidates: tuple[Adversary, ...]
    loss: Loss = cross_entropy

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError(
                f"{self.name} selects among no candidates. "
                "Give it at least one, such as `partial_attack((1,), PGD())`."
            )

    @property
    def needs(self) -> Access:
        return strongest_need(self.candidates)

    def children(self) -> Sequence[Adversary]:
        return self.candidates

    def cost(self, draws: int = 1) -> PassCost | None:
        costs = known_costs([candidate.cost(draws) for candidate in self.candidates])
        return None if costs is None else PassCost.sum(cost.plus_forward(1) for cost in costs)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        objective = AttackObjective([defense], y, self.loss, mean_of_losses)
        best = BestSoFar(x, defense.unit != "example")
        for candidate in self.candidates:
            point = candidate.move(context, defense, x, y).max_loss_point
            context.meter.charge(context.rows, 1, 0)
            with torch.no_grad():
                best.update(point, objective(point, context.simulated_keys()))
        return AttackResult(best.max_loss_point, best.max_loss_point)


@dataclass(frozen=True)
class Drawn(Adversary):
    """A mixed strategy: one of several adversaries, drawn per example (Xu et al., Eq. 7).

    The draw uses the attacker's random keys. It costs as much as the drawn adversary. Only for
    defenses with independent rows: a batch would be attacked by several adversaries at once.

    Args:
        name: the name shown in tables.
        adversaries: at least one adversary.
        probabilities: the probability of each adversary; they sum to one.
    """

    name: str
    adversaries: tuple[Adversary, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.adversaries) != len(self.probabilities) or not self.adversaries:
            raise ValueError(
                f"{self.name} needs one probability for each adversary, got "
                f"{len(self.probabilities)} for {len(self.adversaries)}."
            )
        if any(p < 0 for p in self.probabilities) or abs(sum(self.probabilities) - 1) > 1e-6:
            raise ValueError(
                f"{self.name}: probabilities must not be negative and must sum to one, "
                f"got {self.probabilities}."
            )

    @property
    def needs(self) -> Access:
        return strongest_need(self.adversaries)

    def children(self) -> Sequence[Adversary]:
        return self.adversaries

    def cost(self, draws: int = 1) -> PassCost | None:
        costs = known_costs([adversary.cost(draws) for adversary in self.adversaries])
        if costs is None:
            return None
        return PassCost(max(c.forward for c in costs), max(c.backward for c in costs))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.unit != "example":
            raise ValueError(
                f"{self.name} draws an attack for each example, but the rows of this defense "
                "depend on each other: it needs a defense with independent rows."
            )
        levels = torch.tensor(self.probabilities[:-1], dtype=torch.float64).cumsum(0).to(x.device)
        draw = context.attacker_keys().fold_in(_DRAW).uniform((1,), torch.float64).to(x.device)
        chosen = (draw >= levels).sum(1)  # [N]
        result = AttackResult(x, x)
        for k, adversary in enumerate(self.adversaries):
            rows = (chosen == k).nonzero()[:, 0]
            if len(rows):
                part = context.restrict(rows)
                found = adversary.move(part, defense.restrict(rows), x[rows], y[rows])
                result = result.with_rows(rows, found)
        return result


@dataclass(frozen=True)
class OnExits(AdversaryWrapper):
    """The adversary against the mean logits of some exits, for losses of one logit vector.

    Its points of highest loss are proposed, because they are evaluated on other exits too.

    Args:
        adversary: an adversary for networks with one output.
        subset: the attacked exits, numbered from 1.
        latent: exits that the adversary sees as further views.
    """

    subset: Subset
    latent: Subset = ()

    @property
    def name(self) -> str:
        return attack_name(self.adversary.name, self.subset)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not has_exits(defense):
            raise TypeError(
                f"{self.name} attacks exits, so it needs a MultiExit; got {type(defense).__name__}."
            )
        mean = MeanOfExits(defense, self.subset, self.latent)
        return MaxLossPoint(self.adversary).move(context, mean, x, y)


def attack_name(name: str, subset: Subset) -> str:
    """The name of an attack on some exits, such as 'pgd-20 at 1+3'."""
    return f"{name} at {subset_name(subset)}"
