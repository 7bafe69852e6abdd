"""The base classes of adversaries. Each adversary is a row of the game."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.oracle import ACCESS_LEVELS
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.properties import AdversaryProperties

if TYPE_CHECKING:
    from saddlepoint.evaluation.direct import Direct


class Adversary(ABC):
    """A strategy that proposes one point per example. The referee decides whether it succeeded.

    Subclasses are frozen dataclasses with `name` and `needs` as fields or properties. An adversary
    built from others returns them from `children`; its properties and cost follow from them.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...
        @property
        def needs(self) -> Access: ...

    @abstractmethod
    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        """Propose points for one batch.

        Args:
            context: threat model, pass counter, example ids and random keys of the batch.
            defense: the defense under attack.
            x: clean inputs, [N, ...].
            y: labels, [N].

        Returns:
            The proposed points and the points of highest loss.
        """

    def children(self) -> Sequence[Adversary]:
        """The adversaries inside this one."""
        return ()

    @property
    def properties(self) -> AdversaryProperties:
        """What the adversary and all adversaries inside it are made of."""
        return AdversaryProperties.union(self.needs, [c.properties for c in self.children()])

    def cost(self, draws: int = 1) -> PassCost | None:  # noqa: ARG002
        """The most passes per example, where a randomized defense is evaluated over `draws` draws.

        None if it is not known, which is the default.
        """
        return None

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        """The part of the cost that applies to every example that is still classified correctly."""
        return self.cost(draws)

    @property
    def starts_per_run(self) -> int:
        """The number of random points from which a run starts, one after another."""
        return 1

    def single_run(self) -> Adversary | None:
        """One run of one optimizer, if that is what the adversary repeats; None if it is not."""
        return None

    def continued(self, points: Tensor) -> Adversary:  # noqa: ARG002
        """The adversary from where others ended, if it can start there; else itself.

        Args:
            points: [M, ...] by example id.
        """
        return self

    def map_direct(self, change: Callable[[Direct], Direct]) -> Adversary:  # noqa: ARG002
        """The same `single_run` with another optimizer, loss or aim.

        Raises:
            TypeError: the adversary is not built around one `Direct`.
        """
        raise TypeError(f"{type(self).__name__} is not built around one Direct adversary.")


@dataclass(frozen=True)
class AdversaryWrapper(Adversary):
    """An adversary around another one, with its name, needs, properties and cost."""

    adversary: Adversary

    @property
    def name(self) -> str:
        return self.adversary.name

    @property
    def needs(self) -> Access:
        return self.adversary.needs

    def children(self) -> Sequence[Adversary]:
        return (self.adversary,)

    def added_forward(self, draws: int) -> int:  # noqa: ARG002
        """Forward passes per example that the wrapper adds to those of the inner adversary."""
        return 0

    def cost(self, draws: int = 1) -> PassCost | None:
        cost = self.adversary.cost(draws)
        return None if cost is None else cost.plus_forward(self.added_forward(draws))

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        cost = self.adversary.first_stage_cost(draws)
        return None if cost is None else cost.plus_forward(self.added_forward(draws))

    @property
    def starts_per_run(self) -> int:
        return self.adversary.starts_per_run

    def continued(self, points: Tensor) -> Adversary:
        return replace(self, adversary=self.adversary.continued(points))

    def map_direct(self, change: Callable[[Direct], Direct]) -> Adversary:
        return replace(self, adversary=self.adversary.map_direct(change))


def strongest_need(adversaries: Sequence[Adversary]) -> Access:
    """The access that all of these adversaries together need."""
    return max((adversary.needs for adversary in adversaries), key=ACCESS_LEVELS.index)


def known_costs(costs: Sequence[PassCost | None]) -> list[PassCost] | None:
    """The costs, or None if one of them is not known."""
    known = [cost for cost in costs if cost is not None]
    return known if len(known) == len(costs) else None
