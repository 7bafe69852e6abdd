"""The base class of attacks: optimizers over an oracle and a perturbation set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys

QueriedOracle = TypeVar("QueriedOracle", contravariant=True)


class Attack(ABC, Generic[QueriedOracle]):
    """An optimizer that queries an oracle. It has no access to the model or the labels.

    Subclasses are frozen dataclasses; their fields are the hyper-parameters. They set `needs`,
    define `calls` as a field or property, and implement `__call__`.
    """

    # The access it needs; checked against the threat model before it runs.
    needs: ClassVar[Access]
    # It minimizes the norm of the perturbation instead of maximizing a loss.
    minimum_norm: ClassVar[bool] = False
    # It stops by itself when the query budget is used up.
    stops_at_budget: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def calls(self) -> int:
            """The most oracle calls per example."""
            ...

    def stays_inside(self, space: Ball) -> bool:  # noqa: ARG002
        """Whether all queried points lie in the set, so that none has to be checked.

        By default they are checked. Attacks that project every point override this.
        """
        return False

    @abstractmethod
    def __call__(
        self, oracle: QueriedOracle, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        """Search the perturbation set around `center`.

        Args:
            oracle: evaluates points and counts passes.
            center: clean inputs, [N, ...].
            space: the perturbation set.
            keys: one random key per example.

        Returns:
            The best point and the point of highest loss per example.
        """

    def scaled(self, factor: int) -> Attack[Any]:
        """This attack with `factor` times as many steps or queries.

        By default the attack is repeated `factor` times with different random keys. Attacks with a
        number of steps or queries override this.

        Args:
            factor: a whole number, at least 1.
        """
        return self if factor == 1 else Repeated(self, factor)


@dataclass(frozen=True)
class Repeated(Attack[Scores]):
    """The best result of `times` runs of an attack, each with different random keys.

    The end points of each run are evaluated once more, so that runs are compared by one objective.

    Args:
        attack: the attack to repeat.
        times: number of runs, at least 1.
    """

    attack: Attack[Any]
    times: int

    @property
    def needs(self) -> Access:  # type: ignore[override]
        return self.attack.needs

    @property
    def minimum_norm(self) -> bool:  # type: ignore[override]
        return self.attack.minimum_norm

    @property
    def calls(self) -> int:
        return self.times * (self.attack.calls + 2)

    def __call__(self, oracle: Scores, center: Tensor, space: Ball, keys: Keys) -> AttackResult:
        best = BestSoFar(center, oracle.coupled)
        for k in range(self.times):
            result = self.attack(oracle, center, space, keys.fold_in(k))
            for point in (result.point, result.max_loss_point):
                best.update(point, oracle.score(point))
        return best.result


class CallableAttack(Protocol):
    """What `as_attack` accepts: an object with `needs` and `calls` that can be called."""

    @property
    def needs(self) -> Access: ...
    @property
    def calls(self) -> int: ...
    def __call__(self, oracle: Any, center: Tensor, space: Ball, keys: Keys) -> AttackResult: ...


@dataclass(frozen=True)
class AttackAdapter(Attack[Any]):
    """An `Attack` around an object with `needs`, `calls` and `__call__`.

    Args:
        attack: the object, which need not subclass `Attack`.
    """

    attack: CallableAttack

    @property
    def needs(self) -> Access:  # type: ignore[override]
        return self.attack.needs

    @property
    def calls(self) -> int:
        return self.attack.calls

    def __call__(self, oracle: Any, center: Tensor, space: Ball, keys: Keys) -> AttackResult:
        return self.attack(oracle, center, space, keys)


def as_attack(attack: Attack[Any] | CallableAttack) -> Attack[Any]:
    """The attack itself if it subclasses `Attack`, else an adapter with the default behavior."""
    return attack if isinstance(attack, Attack) else AttackAdapter(attack)
