"""Adversaries built from other adversaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.losses import TargetedLoss, merge_rejection, targeted_dlr
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.evaluation.adversary import (
    Adversary,
    AdversaryWrapper,
    known_costs,
    strongest_need,
)
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import AroundDirect, Direct
from saddlepoint.evaluation.properties import AdversaryProperties
from saddlepoint.gradients import Evaluation


@dataclass(frozen=True)
class Cascade(Adversary):
    """Several adversaries in turn.

    Where rows are independent, misclassified rows are not attacked again. Coupled rows are compared
    as whole batches, and the worst batch is kept.
    """

    name: str
    adversaries: tuple[Adversary, ...]

    def __post_init__(self) -> None:
        if not self.adversaries:
            raise ValueError(
                f"{self.name} combines no adversaries, so it would propose the clean images. "
                "Give it at least one adversary."
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
        return PassCost.sum(cost.plus_forward(2 * draws) for cost in costs)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        coupled = defense.unit != "example"
        best = BestSoFar(x, coupled)
        alive = torch.arange(len(x), device=x.device)
        for adversary in self.adversaries:
            part = context.restrict(alive)
            restricted = defense.restrict(alive)
            labels = y[alive]
            result = adversary.move(part, restricted, x[alive], labels)
            simulation = part.simulate(restricted, result.point, labels)
            _update(best, alive, result.point, simulation.evaluation)
            # Losses of different attacks have different scales, so points of highest loss are
            # compared by the margin of the defense. Only rows with a different point of highest
            # loss are evaluated again. That changes no other row: random keys depend on the pass
            # count of the row itself.
            moved = (result.max_loss_point != result.point).flatten(1).any(1)
            apart = block(moved.long(), coupled).nonzero()[:, 0]
            if len(apart):
                points = result.max_loss_point[apart]
                again = part.restrict(apart).simulate(
                    restricted.restrict(apart), points, labels[apart]
                )
                _update(best, alive[apart], points, again.evaluation)
            if not coupled:
                alive = alive[~simulation.always_misclassified]
            if not len(alive):
                break
        return best.result


@dataclass(frozen=True)
class MaxLossPoint(AdversaryWrapper):
    """The adversary's points of highest loss, for evaluation on another model."""

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        point = self.adversary.move(context, defense, x, y).max_loss_point
        return AttackResult(point, point)


@dataclass(frozen=True)
class SkipMisclassified(AdversaryWrapper):
    """The adversary on rows that the defense classifies correctly without an attack.

    The clean image is proposed for the other rows. Only for deterministic defenses with independent
    rows: for others, one clean output decides nothing. It costs the adversary and one output.
    """

    def added_forward(self, draws: int) -> int:
        return draws

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.random or defense.unit != "example":
            raise ValueError(
                "SkipMisclassified needs a deterministic defense with independent rows; "
                "run the adversary itself."
            )
        correct = ~context.simulate(defense, x, y).always_misclassified
        rows = correct.nonzero()[:, 0]
        if not len(rows):
            return AttackResult(x, x)
        result = self.adversary.move(
            context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
        )
        return AttackResult(x, x).with_rows(rows, result)


@dataclass(frozen=True)
class CleanCopies(SkipMisclassified):
    """The stock behavior of AutoAttack: the clean image where the attack did not succeed.

    The clean image is also returned where the model was wrong without an attack. This does not
    change the accuracy of the attacked model, but it overestimates that of any other model that is
    evaluated on the points. Use it only to compare with published numbers that were computed this
    way. The name of the adversary gets the suffix "(clean copies)".
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean copies)"

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, clean_fallback=True)

    def added_forward(self, draws: int) -> int:
        return 2 * draws

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        point = super().move(context, defense, x, y).point
        success = context.simulate(defense, point, y).always_misclassified
        returned = torch.where(per_example(success, x), point, x)
        return AttackResult(returned, returned)


@dataclass(frozen=True)
class Restarts(AdversaryWrapper):
    """The same adversary `times` times, each time with other random keys."""

    times: int = 5

    @property
    def name(self) -> str:
        return f"{self.adversary.name} x{self.times}"

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, restarts=True)

    def cost(self, draws: int = 1) -> PassCost | None:
        cost = self.adversary.cost(draws)
        return None if cost is None else cost.plus_forward(2 * draws).times(self.times)

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        return self.cost(draws)

    def single_run(self) -> Adversary | None:
        return self.adversary.single_run()

    @property
    def starts_per_run(self) -> int:
        return self.times * self.adversary.starts_per_run

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        runs = tuple(OtherKeys(self.adversary, k) for k in range(self.times))
        return Cascade(self.name, runs).move(context, defense, x, y)


def from_starts(adversary: Adversary, times: int) -> Adversary:
    """The adversary from at least this many random starts."""
    return adversary if adversary.starts_per_run >= times else Restarts(adversary, times)


@dataclass(frozen=True)
class OtherKeys(AdversaryWrapper):
    """The adversary with other random keys.

    Args:
        adversary: the adversary.
        salt: any integer; each gives other keys.
    """

    salt: int

    def single_run(self) -> Adversary | None:
        return self.adversary.single_run()

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.adversary.move(context.again(self.salt), defense, x, y)


@dataclass(frozen=True)
class MultiTarget(AroundDirect):
    """`direct` once per target class, most likely wrong class of the clean image first.

    Args:
        direct: the attack of one target class; its own loss is replaced.
        targets: number of target classes, at most all wrong ones; default: 9.
        loss: makes the per-example loss from target classes [N]; default: targeted DLR.
    """

    targets: int = 9
    loss: TargetedLoss = targeted_dlr

    def cost(self, draws: int = 1) -> PassCost:
        return self.direct.cost().plus_forward(2 * draws).times(self.targets).plus_forward(1)

    def single_run(self) -> Direct:
        return self.direct

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        order = _likely_classes(context, defense, x, y)
        count = min(self.targets, order.shape[1] - 1)
        runs: list[Adversary] = [
            _TowardClass(self, order[:, k], context.rows) for k in range(count)
        ]
        if count > 1 and self._repeatable(context, defense):
            # The most likely class misclassifies most rows; few are left for all others.
            runs = [runs[0], _TowardClasses(self, order[:, 1:count], context.rows)]
        return Cascade(self.name, tuple(runs)).move(context, defense, x, y)

    def _repeatable(self, context: AttackContext, defense: Defense) -> bool:
        """Whether a row can be attacked toward several classes in the same batch."""
        independent = defense.unit == "example" and not defense.random and defense.memory == "none"
        return independent and context.threat.queries is None and context.history.steps is None


@dataclass(frozen=True)
class SingleTarget(AroundDirect):
    """`direct` toward one wrong class of each image, by its rank on the clean image.

    Args:
        direct: the attack; its own loss is replaced.
        rank: 0 is the most likely wrong class; beyond the last one it starts again.
        loss: makes the per-example loss from target classes [N]; default: targeted DLR.
    """

    rank: int
    loss: TargetedLoss = targeted_dlr

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        return self.direct.cost().plus_forward(1)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        order = _likely_classes(context, defense, x, y)
        target = order[:, self.rank % (order.shape[1] - 1)]
        return _TowardClass(self, target, context.rows).move(context, defense, x, y)


def _likely_classes(context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> Tensor:
    """[N, C] classes of the clean images, the most likely wrong one first, y itself last."""
    if context.exceeds_a_call:
        parts = [
            _likely_classes(context.restrict(rows), defense.restrict(rows), x[rows], y[rows])
            for rows in context.parts
        ]
        return torch.cat(parts)
    context.meter.charge(context.rows, 1, 0)
    with torch.no_grad():
        output = defense.respond(x, Context(context.simulated_keys(), keep=defense.reads))
    logits = merge_rejection(output, y, defense.rejects)
    return logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)


@dataclass(frozen=True)
class _TowardClass(Adversary):
    """One target class per row."""

    outer: MultiTarget | SingleTarget
    target: Tensor  # [M] a class per row of the outer context, [M, T] for several
    rows: Tensor  # [M] the rows of the outer context, increasing

    @property
    def name(self) -> str:
        return self.outer.name

    @property
    def needs(self) -> Access:
        return self.outer.needs

    def targets(self, context: AttackContext) -> Tensor:
        """The target classes of the rows of a context."""
        return self.target[torch.searchsorted(self.rows, context.rows).to(self.target.device)]

    def toward(self, target: Tensor) -> Direct:
        """The attack toward these classes, [N]."""
        return replace(self.outer.direct, loss=self.outer.loss(target))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.toward(self.targets(context)).move(context, defense, x, y)


@dataclass(frozen=True)
class _TowardClasses(_TowardClass):
    """Several target classes per row, as many in one batch as fill it.

    The points are those of one run after another: the first success of a row, else its point of
    highest margin.
    """

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        best = BestSoFar(x, coupled=False)
        remaining = self.targets(context)
        while remaining.shape[1] and not best.success.all():
            alive = (~best.success).nonzero()[:, 0]
            count = min(max(context.batch_size // len(alive), 1), remaining.shape[1])
            classes = remaining[alive, :count].T.flatten()  # all rows, class by class
            remaining = remaining[:, count:]
            repeated = alive.repeat(count)
            part = context.restrict(repeated)
            restricted = defense.restrict(repeated)
            result = self.toward(classes).move(part, restricted, x[repeated], y[repeated])
            evaluation = part.simulate(restricted, result.point, y[repeated]).evaluation
            for k in range(count):
                rows = torch.arange(k * len(alive), (k + 1) * len(alive), device=x.device)
                rows = rows[~best.success[alive]]
                found = Evaluation(evaluation.value[rows], evaluation.success[rows])
                _update(best, repeated[rows], result.point[rows], found)
        return best.result


@dataclass(frozen=True)
class Transfer(Adversary):
    """Attack the model `source` and transfer the points of highest loss to the defense.

    Success on the source says nothing about the defense, so the points of highest loss are used.

    Args:
        adversary: attacks the source with gradient access.
        source: the model that belongs to the attacker, such as `Plain(net)`.
    """

    adversary: Adversary
    source: Defense

    @property
    def name(self) -> str:
        return f"transfer {self.adversary.name}"

    @property
    def needs(self) -> Access:
        return "decision"  # of the defense; the source belongs to the attacker

    def children(self) -> Sequence[Adversary]:
        return (self.adversary,)

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, transfers=True)

    def cost(self, draws: int = 1) -> PassCost | None:
        return self.adversary.cost(draws)

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        return self.adversary.first_stage_cost(draws)

    def move(
        self,
        context: AttackContext,
        defense: Defense,  # noqa: ARG002
        x: Tensor,
        y: Tensor,
    ) -> AttackResult:
        threat = replace(context.threat, access="gradient", online_queries=False)
        own = replace(context, threat=threat)
        return MaxLossPoint(self.adversary).move(own, self.source, x, y)


def _update(best: BestSoFar, rows: Tensor, x: Tensor, evaluation: Evaluation) -> None:
    """Update some rows of the best points; rows that were not evaluated keep theirs."""
    n = len(best.point)
    value = best.value.new_full((n,), -torch.inf)
    value = value.index_copy(0, rows, evaluation.value.to(best.value))
    success = torch.zeros(n, dtype=torch.bool, device=rows.device)
    success = success.index_copy(0, rows, evaluation.success)
    best.update(best.point.index_copy(0, rows, x), Evaluation(value, success))
