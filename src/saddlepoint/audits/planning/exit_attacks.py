"""Attacks on hidden exits: one by one, with and without their gates, in pairs, and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.aims import Aim, AtLeast, mean_of_losses, min_over_views
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import margin, targeted_cross_entropy, targeted_margin
from saddlepoint.attacks.pgd import PGD
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.planning.parts import FEW_TARGETS, Parts
from saddlepoint.audits.target.exits import ExposedExits, HiddenExits, exit_name, selection_name
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation import Adversary, Cascade, Direct, MultiTarget
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.phrases import count

_STEPS = 40


@dataclass(frozen=True)
class AgainstExits(AdversaryWrapper):
    """The adversary against the exposed exits; success is that of the defense itself.

    Each pass runs the defense twice: with forced decisions for the exits, and as it is for its
    answer. Exits may have gradients where the answer has none, so that the attack needs only the
    access that the defense gives.
    """

    hidden: HiddenExits
    access: Access = "gradient"  # that the defense gives

    @property
    def needs(self) -> Access:
        return self.access

    def cost(self, draws: int = 1) -> PassCost | None:
        cost = self.adversary.cost(draws)
        return None if cost is None else cost.plus_forward(cost.forward)

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        return self.cost(draws)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        exposed = ExposedExits(defense, self.hidden, y)
        before = context.meter.forward[context.rows]
        result = self.adversary.move(context, exposed, x, y)
        context.meter.forward[context.rows] += context.meter.forward[context.rows] - before
        return result


def exit_attacks(parts: Parts) -> Iterator[Choice]:
    """Attacks on each hidden exit, alone or with its gate, on exits in a row, and on a majority."""
    hidden = parts.facts.exits
    if hidden is None or not parts.budget.targets:
        return
    access = parts.defense.grants
    source = f"hidden exits at {hidden.places}"
    yield Choice(
        AgainstExits(Cascade("pgd-exit", tuple(_single_exits(parts, hidden))), hidden, access),
        f"{source}: each of {count(len(hidden), 'exit')} with the comparisons that select it"
        f"{parts.why()}",
    )
    yield Choice(
        AgainstExits(Cascade("pgd-sure", tuple(_sure_exits(parts, hidden))), hidden, access),
        f"{source}: confident errors of each exit, which most gates accept{parts.why()}",
    )
    yield Choice(
        AgainstExits(Cascade("pgd-exits", tuple(_several_exits(parts, hidden))), hidden, access),
        f"{source}: exits in a row, a majority and all exits, toward the same class{parts.why()}",
    )


def _single_exits(parts: Parts, hidden: HiddenExits) -> Iterator[Adversary]:
    for k, selections in enumerate(hidden.selections):
        names = [exit_name(k), *(selection_name(k, j) for j in range(len(selections)))]
        yield _direct(parts, names, min_over_views)


def _sure_exits(parts: Parts, hidden: HiddenExits) -> Iterator[Adversary]:
    """Each exit alone: the probability of a wrong class increases beyond the first error."""
    targets = min(parts.targets, FEW_TARGETS)
    for k in range(len(hidden)):
        alone = _direct(parts, [exit_name(k)], mean_of_losses)
        yield MultiTarget(alone, targets, targeted_cross_entropy)


def _several_exits(parts: Parts, hidden: HiddenExits) -> Iterator[Adversary]:
    names = [exit_name(k) for k in range(len(hidden))]
    targets = min(parts.targets, FEW_TARGETS)
    yield _direct(parts, names, mean_of_losses)
    for k in range(len(names) - 1):
        pair = _direct(parts, names[k : k + 2], min_over_views)
        yield MultiTarget(pair, targets, targeted_margin)
    if len(names) > 2:
        majority = _direct(parts, names, AtLeast(len(names) // 2 + 1))
        yield MultiTarget(majority, targets, targeted_margin)


def _direct(parts: Parts, names: Sequence[str], aim: Aim) -> Direct:
    steps = min(_STEPS, parts.query_budget.steps)
    return replace(
        parts.apgd,
        name="pgd-exit",
        attack=PGD(steps, momentum=0.75),
        loss=margin,
        aim=aim,
        keep=frozenset(names),
    )
