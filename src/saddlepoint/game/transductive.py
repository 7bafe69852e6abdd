"""Attacks on defences that learn from the batch they are asked about: attack models that the defender may turn into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.attack.best import Best, Found, block
from saddlepoint.attack.goal import Goal
from saddlepoint.attack.loss import Loss, NextClass, confidence, margin
from saddlepoint.attack.pgd import PGD
from saddlepoint.attack.pool import AVERAGE, Over, Pool
from saddlepoint.attack.space import per_example
from saddlepoint.defense import Access, Context, Defense
from saddlepoint.game.adversary import Around, Direct, Turn


class Joint(Protocol):
    """An attack that can be sent against several models at once."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Access: ...
    def against(self, pool: Sequence[Defense], turn: Turn, x: Tensor, y: Tensor, over: Over = AVERAGE) -> Found: ...
    def lasting(self, times: int) -> Joint: ...


@dataclass(frozen=True)
class _InRounds(ABC):
    """Attack models that the defender may turn into, see what it turns into then, and go on."""

    name: str
    direct: Joint
    rounds: int = 10  # T + 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"{self.name} attacks in at least one round, got rounds={self.rounds}.")

    @property
    def needs(self) -> Access:
        return self.direct.needs

    @property
    def shared(self) -> Over:
        """How several models count together."""
        return AVERAGE

    @abstractmethod
    def pool(self, attacked: tuple[Defense, ...], became: tuple[Defense, ...]) -> tuple[Defense, ...]:
        """Which models are attacked next, given those of this round and what the defender turned into."""

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        best = Best(x, defense.unit != "example")
        pool: tuple[Defense, ...] = (defense,)
        for i in range(self.rounds):
            seat = turn.again(i)
            # The models that answer are others than those attacked: max-value points only.
            point = self.direct.lasting(self.shared.patience(len(pool))).against(pool, seat, x, y, self.shared).peak
            rehearsal = seat.rehearse(defense, point, y)
            best.offer(point, rehearsal.reading)
            pool = self.pool(pool, rehearsal.became)
        return best.found


@dataclass(frozen=True)
class GreedyModelSpace(_InRounds):
    """Attack all models that the defender has turned into so far, see what it turns into then, and go on.

    U_i = argmax_U over_{j <= i} L(F_j, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i against which F_{i+1} errs most is sent.
    GMSA, Chen et al. 2022, Sec. 5.2, Algorithm 2; `over=AverageLoss()` is GMSA-AVG, `over=LeastLoss()` GMSA-MIN with steps in
    proportion to the models, as App. A.1.3 has it. F_0 is the defence as it stands. With one round it is a transfer of that.

    Gamma is played with the attacker's own coins. The best U_i is chosen as the referee would judge it, wrong answers first and
    then margins, in whole batches; the released code may send the clean batch instead (`CleanFallback`). A random Gamma gives as
    many models per round as the threat has draws.
    """

    over: Over = AVERAGE

    @property
    def shared(self) -> Over:
        return self.over

    def pool(self, attacked: tuple[Defense, ...], became: tuple[Defense, ...]) -> tuple[Defense, ...]:
        return (*attacked, *became)


@dataclass(frozen=True)
class FixedPoint(_InRounds):
    """Attack the model that the defender turned into last, see what it turns into then, and go on.

    U_i = argmax_U L(F_i, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i against which F_{i+1} errs most is sent. FPA, Chen et al.
    2022, Sec. 5.1, Algorithm 1. It hopes for a fixed point, and may circle instead: `GreedyModelSpace` remembers.
    """

    def pool(self, attacked: tuple[Defense, ...], became: tuple[Defense, ...]) -> tuple[Defense, ...]:  # noqa: ARG002
        return became


@dataclass(frozen=True)
class Retrained:
    """Attack an ensemble of models that the defence turns into on the clean batch, each with coins of its own.

    For a defence whose learning depends on its coins and little on the batch, such as one that trains again at test time (Chen et
    al. 2022, Sec. 6, TADV): points that fool all of many independent models should fool one more.
    """

    name: str
    direct: Joint
    models: int = 10
    over: Over = AVERAGE

    def __post_init__(self) -> None:
        if self.models < 1:
            raise ValueError(f"{self.name} attacks an ensemble of at least one model, got models={self.models}.")

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        turn.meter.charge(turn.rows, self.models, 0)
        with torch.no_grad():
            pool = [defense.adapt(x, Context(turn.again(k).simulated_coins())) for k in range(self.models)]
        peak = self.direct.lasting(self.over.patience(len(pool))).against(pool, turn, x, y, self.over).peak
        return Found(peak, peak)


@dataclass(frozen=True)
class Skip(Around):
    """Attack an online defence as the last batch left it, though it will learn from this one before it answers.

    PGD-skip of Wu et al. 2020 (RMC), as told in Chen et al. 2022, Example 1: it reads the defender's state.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-skip"

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        if not turn.threat.leaking:
            raise PermissionError(
                f"{self.name} attacks the defender's state, which this threat hides. Use Threat(leaking=True), or transfer from a "
                "copy of the defence with Transfer."
            )
        peak = self.adversary.move(turn, defense, x, y).peak
        return Found(peak, peak)


@dataclass(frozen=True)
class CleanFallback(Around):
    """What the released code of Chen et al. sends: the clean batch, unless the attack makes more answers wrong than that.

    The defence is then credited with rows that the attack failed to break only in the attacker's head. For comparisons with figures
    that were found in this way, and labelled for it.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean fallback)"

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        point, coupled = self.adversary.move(turn, defense, x, y).point, defense.unit != "example"
        attacked, clean = (block(turn.rehearse(defense, z, y).reading.success.long(), coupled) for z in (point, x))
        sent = torch.where(per_example(attacked > clean, x), point, x)
        return Found(sent, sent)


@dataclass(frozen=True)
class Portfolio:
    """Several attacks on the same models; each row takes the point that its models like worst.

    argmax over the runs of over_j pick(F_j, x), row by row where rows are independent. Chen et al. 2022, App. A.3: losses that are
    easy to climb find the points, a loss that is not decides among them.
    """

    name: str
    runs: tuple[Direct, ...]
    pick: Loss = confidence

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(f"{self.name} chooses among no attacks. Give it at least one, such as Direct('pgd', PGD()).")

    @property
    def needs(self) -> Access:
        return max((run.needs for run in self.runs), key=("decision", "score", "gradient").index)

    def lasting(self, times: int) -> Portfolio:
        return replace(self, runs=tuple(run.lasting(times) for run in self.runs))

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return self.against([defense], turn, x, y)

    def against(self, pool: Sequence[Defense], turn: Turn, x: Tensor, y: Tensor, over: Over = AVERAGE) -> Found:
        best = Best(x, any(defense.coupled for defense in pool))
        goal = Pool(tuple(Goal([defense], y, self.pick) for defense in pool), over)
        for k, run in enumerate(self.runs):
            peak = run.against(pool, turn.again(k), x, y, over).peak
            turn.meter.charge(turn.rows, len(pool), 0)
            with torch.no_grad():
                best.offer(peak, goal(peak, turn.simulated_coins()))
        return Found(best.peak, best.peak)


def high_confidence(
    *, steps: int = 100, step_size: float = 1 / 255, starts: int = 5, targets: int = 9, name: str = "pgd"
) -> Portfolio:
    """The 14 runs of Chen et al. 2022, App. A.3: PGD on the margin from `starts` points, then towards each of `targets` classes."""
    attack = PGD(steps, step_size)
    runs = [Direct(f"{name} {k}", attack, margin) for k in range(starts)]
    return Portfolio(name, (*runs, *(Direct(f"{name} to +{k}", attack, NextClass(k)) for k in range(1, targets + 1))))
