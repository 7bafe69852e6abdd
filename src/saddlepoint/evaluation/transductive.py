"""Attacks on defenses that learn from the batch they are asked about: attack models that the defender may turn into."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.ensemble import AVERAGE, LossWeighting, Pool
from saddlepoint.attacks.losses import Loss, NextClass, confidence, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.evaluation.adversaries import AdversaryWrapper, AttackContext, Direct


class Joint(Protocol):
    """An attack that can be sent against several models at once."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Access: ...
    def against(
        self,
        pool: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        over: LossWeighting = AVERAGE,
    ) -> AttackResult: ...
    def lasting(self, times: int) -> Joint: ...


@dataclass(frozen=True)
class _InRounds(ABC):
    """Attack models that the defender may turn into, see what it turns into then, and go on."""

    name: str
    direct: Joint
    rounds: int = 10  # T + 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(
                f"{self.name} attacks in at least one round, got rounds={self.rounds}."
            )

    @property
    def needs(self) -> Access:
        return self.direct.needs

    @property
    def shared(self) -> LossWeighting:
        """How several models count together."""
        return AVERAGE

    @abstractmethod
    def pool(
        self, attacked: tuple[Defense, ...], became: tuple[Defense, ...]
    ) -> tuple[Defense, ...]:
        """Which models are attacked next, given those of this round and what the defender turned into."""

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        best = BestSoFar(x, defense.unit != "example")
        pool: tuple[Defense, ...] = (defense,)
        for i in range(self.rounds):
            sub_context = context.again(i)
            # The models that answer are others than those attacked: max-value points only.
            point = (
                self.direct.lasting(self.shared.patience(len(pool)))
                .against(pool, sub_context, x, y, self.shared)
                .max_loss_point
            )
            simulation = sub_context.simulate(defense, point, y)
            best.offer(point, simulation.evaluation)
            pool = self.pool(pool, simulation.became)
        return best.found


@dataclass(frozen=True)
class GreedyModelSpace(_InRounds):
    """Attack all models that the defender has turned into so far, see what it turns into then, and go on.

    U_i = argmax_U over_{j <= i} L(F_j, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i against which F_{i+1} errs most is sent.
    GMSA, Chen et al. 2022, Sec. 5.2, Algorithm 2; `over=AverageLoss()` is GMSA-AVG, `over=LeastLoss()` GMSA-MIN with steps in
    proportion to the models, as App. A.1.3 has it. F_0 is the defense as it stands. With one round it is a transfer of that.

    Gamma is played with the attacker's own coins. The best U_i is chosen as the referee would judge it, wrong answers first and
    then margins, in whole batches; the released code may send the clean batch instead (`CleanFallback`). A random Gamma gives as
    many models per round as the threat has draws.
    """

    over: LossWeighting = AVERAGE

    @property
    def shared(self) -> LossWeighting:
        return self.over

    def pool(
        self, attacked: tuple[Defense, ...], became: tuple[Defense, ...]
    ) -> tuple[Defense, ...]:
        return (*attacked, *became)


@dataclass(frozen=True)
class FixedPoint(_InRounds):
    """Attack the model that the defender turned into last, see what it turns into then, and go on.

    U_i = argmax_U L(F_i, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i against which F_{i+1} errs most is sent. FPA, Chen et al.
    2022, Sec. 5.1, Algorithm 1. It hopes for a fixed point, and may circle instead: `GreedyModelSpace` remembers.
    """

    def pool(
        self,
        attacked: tuple[Defense, ...],  # noqa: ARG002
        became: tuple[Defense, ...],
    ) -> tuple[Defense, ...]:
        return became


@dataclass(frozen=True)
class RetrainedEnsemble:
    """Attack an ensemble of models that the defense turns into on the clean batch, each with coins of its own.

    For a defense whose learning depends on its coins and little on the batch, such as one that trains again at test time (Chen et
    al. 2022, Sec. 6, TADV): points that fool all of many independent models should fool one more.
    """

    name: str
    direct: Joint
    models: int = 10
    over: LossWeighting = AVERAGE

    def __post_init__(self) -> None:
        if self.models < 1:
            raise ValueError(
                f"{self.name} attacks an ensemble of at least one model, got models={self.models}."
            )

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        context.meter.charge(context.rows, self.models, 0)
        with torch.no_grad():
            pool = [
                defense.adapt(x, Context(context.again(k).simulated_keys()))
                for k in range(self.models)
            ]
        max_loss_point = (
            self.direct.lasting(self.over.patience(len(pool)))
            .against(pool, context, x, y, self.over)
            .max_loss_point
        )
        return AttackResult(max_loss_point, max_loss_point)


@dataclass(frozen=True)
class Skip(AdversaryWrapper):
    """Attack an online defense as the last batch left it, though it will learn from this one before it answers.

    PGD-skip of Wu et al. 2020 (RMC), as told in Chen et al. 2022, Example 1: it reads the defender's state.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-skip"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not context.threat.state_visible:
            raise PermissionError(
                f"{self.name} attacks the defender's state, which this threat hides. Use Threat(leaking=True), or transfer from a "
                "copy of the defense with Transfer."
            )
        max_loss_point = self.adversary.move(context, defense, x, y).max_loss_point
        return AttackResult(max_loss_point, max_loss_point)


@dataclass(frozen=True)
class CleanFallback(AdversaryWrapper):
    """What the released code of Chen et al. sends: the clean batch, unless the attack makes more answers wrong than that.

    The defense is then credited with rows that the attack failed to break only in the attacker's head. For comparisons with figures
    that were found in this way, and labeled for it.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean fallback)"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        point = self.adversary.move(context, defense, x, y).point
        coupled = defense.unit != "example"
        attacked, clean = (
            block(context.simulate(defense, z, y).evaluation.success.long(), coupled)
            for z in (point, x)
        )
        sent = torch.where(per_example(attacked > clean, x), point, x)
        return AttackResult(sent, sent)


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
            raise ValueError(
                f"{self.name} chooses among no attacks. Give it at least one, such as Direct('pgd', PGD())."
            )

    @property
    def needs(self) -> Access:
        return max((run.needs for run in self.runs), key=("decision", "score", "gradient").index)

    def lasting(self, times: int) -> Portfolio:
        return replace(self, runs=tuple(run.lasting(times) for run in self.runs))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.against([defense], context, x, y)

    def against(
        self,
        pool: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        over: LossWeighting = AVERAGE,
    ) -> AttackResult:
        best = BestSoFar(x, any(defense.coupled for defense in pool))
        objective = Pool(tuple(AttackObjective([defense], y, self.pick) for defense in pool), over)
        for k, run in enumerate(self.runs):
            max_loss_point = run.against(pool, context.again(k), x, y, over).max_loss_point
            context.meter.charge(context.rows, len(pool), 0)
            with torch.no_grad():
                best.offer(max_loss_point, objective(max_loss_point, context.simulated_keys()))
        return AttackResult(best.max_loss_point, best.max_loss_point)


def high_confidence(
    *,
    steps: int = 100,
    step_size: float = 1 / 255,
    starts: int = 5,
    targets: int = 9,
    name: str = "pgd",
) -> Portfolio:
    """The 14 runs of Chen et al. 2022, App. A.3: PGD on the margin from `starts` points, then towards each of `targets` classes."""
    attack = PGD(steps, step_size)
    runs = [Direct(f"{name} {k}", attack, margin) for k in range(starts)]
    return Portfolio(
        name,
        (*runs, *(Direct(f"{name} to +{k}", attack, NextClass(k)) for k in range(1, targets + 1))),
    )
