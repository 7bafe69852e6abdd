"""PGD on a sequence of losses."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import Loss
from saddlepoint.attacks.pgd import PGD, From
from saddlepoint.defenses import Defense
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import AroundDirect, Direct


@dataclass(frozen=True)
class Annealed(AroundDirect):
    """PGD on one loss after another; each stage starts where the one before had its highest loss.

    With a smooth count of errors of decreasing width, the first stages move examples that are far
    from the boundary and the last ones decide which of them can be misclassified together. The
    steps of stage k of K begin with step_size (1 - k / K) and decrease to zero. The best point of
    all stages is proposed; for coupled rows, the batch with the most errors.

    Args:
        direct: the attack; its optimizer is `PGD`, its loss is replaced.
        losses: the losses of the stages, at least one.
    """

    losses: tuple[Loss, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.direct.attack, PGD) or not self.losses:
            raise ValueError(
                "Annealed needs PGD, which can start at any point, and at least one loss; "
                f"got {type(self.direct.attack).__name__} and {len(self.losses)} losses."
            )

    def cost(self, draws: int = 1) -> PassCost:
        return self.direct.cost().plus_forward(draws).times(len(self.losses))

    def single_run(self) -> Direct:
        return self.direct

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        pgd = self.direct.attack
        assert isinstance(pgd, PGD), "checked above"
        first = pgd.step_length(context.threat.space)
        best = BestSoFar(x, defense.unit != "example")
        start: Tensor | None = None
        for k, loss in enumerate(self.losses):
            shorter = replace(pgd, step_size=first * (1 - k / len(self.losses)), decreasing=True)
            attack = shorter if start is None else From(start, shorter)
            result = replace(self.direct, attack=attack, loss=loss).move(context, defense, x, y)
            best.update(result.point, context.simulate(defense, result.point, y).evaluation)
            start = result.max_loss_point
        return best.result
