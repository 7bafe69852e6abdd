"""Attacks on defenses that adapt to the test batch: attack models that the defense may adapt to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.ensemble import AVERAGE, Ensemble, LossWeighting
from saddlepoint.attacks.losses import Loss, NextClass, confidence, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Context, Defense
from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper, strongest_need
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.properties import AdversaryProperties


@dataclass(frozen=True)
class Portfolio(Adversary):
    """Several attacks on the same models; each row keeps the point with the highest `pick` loss.

    argmax over the runs of weighting_j pick(F_j, x), row by row where rows are independent. Chen
    et al. 2022, App. A.3: losses that are easy to maximize find the points, and another loss
    selects among them.
    """

    name: str
    runs: tuple[Direct, ...]
    pick: Loss = confidence

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError(
                f"{self.name} selects among no attacks. "
                "Give it at least one, such as Direct('pgd', PGD())."
            )

    @property
    def needs(self) -> Access:
        return strongest_need(self.runs)

    def children(self) -> Sequence[Adversary]:
        return self.runs

    def cost(self, draws: int = 1) -> PassCost:
        return PassCost.sum(run.cost(draws).plus_forward(1) for run in self.runs)

    def scaled(self, factor: int) -> Portfolio:
        """The same runs with `factor` times as many steps."""
        return replace(self, runs=tuple(run.scaled(factor) for run in self.runs))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.against([defense], context, x, y)

    def against(
        self,
        models: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        weighting: LossWeighting = AVERAGE,
    ) -> AttackResult:
        """Attack several models at once; arguments as in `Direct.against`."""
        best = BestSoFar(x, any(defense.coupled for defense in models))
        objectives = tuple(AttackObjective([defense], y, self.pick) for defense in models)
        objective = Ensemble(objectives, weighting)
        for k, run in enumerate(self.runs):
            point = run.against(models, context.again(k), x, y, weighting).max_loss_point
            context.meter.charge(context.rows, len(models), 0)
            with torch.no_grad():
                best.update(point, objective(point, context.simulated_keys()))
        return AttackResult(best.max_loss_point, best.max_loss_point)


ModelAttack = Direct | Portfolio  # attacks that can be run against several models at once


@dataclass(frozen=True)
class _OnModels(Adversary):
    """An attack on models that the defense may adapt to."""

    name: str
    direct: ModelAttack

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def children(self) -> Sequence[Adversary]:
        return (self.direct,)

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, anticipates_adaptation=True)

    def single_run(self) -> Adversary | None:
        return self if isinstance(self.direct, Direct) else None

    def map_direct(self, change: Callable[[Direct], Direct]) -> Adversary:
        if not isinstance(self.direct, Direct):
            return super().map_direct(change)
        return replace(self, direct=change(self.direct))


@dataclass(frozen=True)
class _InRounds(_OnModels):
    """Attack models, simulate the adaptation to the attacked batch, and repeat."""

    rounds: int = 10  # T + 1

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"{self.name} needs at least one round, got rounds={self.rounds}.")

    @property
    def model_weighting(self) -> LossWeighting:
        """How the losses of several models are combined."""
        return AVERAGE

    @abstractmethod
    def next_models(
        self, attacked: tuple[Defense, ...], adapted: tuple[Defense, ...]
    ) -> tuple[Defense, ...]:
        """The models of the next round, given the attacked ones and the adapted ones."""

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        best = BestSoFar(x, defense.unit != "example")
        models: tuple[Defense, ...] = (defense,)
        weighting = self.model_weighting
        for i in range(self.rounds):
            part = context.again(i)
            attack = self.direct.scaled(weighting.step_factor(len(models)))
            # Other models than the attacked ones are evaluated: use the points of highest loss.
            point = attack.against(models, part, x, y, weighting).max_loss_point
            simulation = part.simulate(defense, point, y)
            best.update(point, simulation.evaluation)
            models = self.next_models(models, simulation.adapted)
        return best.result


@dataclass(frozen=True)
class GreedyModelSpace(_InRounds):
    """Attack all models that the defense has adapted to so far, simulate the next one, and repeat.

    U_i = argmax_U weighting_{j <= i} L(F_j, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i on which
    F_{i+1} makes most errors is proposed. GMSA, Chen et al. 2022, Sec. 5.2, Algorithm 2;
    `weighting=AverageLoss()` is GMSA-AVG, `weighting=MinLoss()` is GMSA-MIN with a number of steps
    proportional to the number of models, as in App. A.1.3. F_0 is the given defense. One round is
    a transfer from it.

    Gamma is simulated with the attacker's own random keys. The best U_i is selected as the referee
    evaluates it: by errors, then by margins, in whole batches. The released code may return the
    clean batch instead (`CleanFallback`). A randomized Gamma gives as many models per round as the
    threat model has draws.

    Args:
        name: the name shown in tables.
        direct: the attack that is run on the models of each round.
        rounds: number of rounds, T + 1; default: 10.
        weighting: how the losses of several models are combined; default: their mean.
    """

    weighting: LossWeighting = AVERAGE

    @property
    def model_weighting(self) -> LossWeighting:
        return self.weighting

    def next_models(
        self, attacked: tuple[Defense, ...], adapted: tuple[Defense, ...]
    ) -> tuple[Defense, ...]:
        return (*attacked, *adapted)

    def cost(self, draws: int = 1) -> PassCost:
        rounds = []
        for i in range(self.rounds):
            models = 1 + i * draws
            attack = self.direct.scaled(self.weighting.step_factor(models))
            rounds.append(attack.cost().times(models).plus_forward(draws))
        return PassCost.sum(rounds)


@dataclass(frozen=True)
class FixedPoint(_InRounds):
    """Attack the model that the defense adapted to last, simulate the next one, and repeat.

    U_i = argmax_U L(F_i, U),  F_{i+1} = Gamma(U_i),  i = 0..T; the U_i on which F_{i+1} makes most
    errors is proposed. FPA, Chen et al. 2022, Sec. 5.1, Algorithm 1. It aims at a fixed point and
    may cycle instead; `GreedyModelSpace` keeps all models.
    """

    def next_models(
        self,
        attacked: tuple[Defense, ...],  # noqa: ARG002
        adapted: tuple[Defense, ...],
    ) -> tuple[Defense, ...]:
        return adapted

    def cost(self, draws: int = 1) -> PassCost:
        models = [1 if i == 0 else draws for i in range(self.rounds)]
        return PassCost.sum(self.direct.cost().times(m).plus_forward(draws) for m in models)


@dataclass(frozen=True)
class RetrainedEnsemble(_OnModels):
    """Attack an ensemble of models adapted to the clean batch, each with its own random keys.

    For a defense with an adaptation that depends on randomness more than on the batch, such as one
    that retrains at test time (Chen et al. 2022, Sec. 6, TADV): points that are misclassified by
    many independent models are likely to be misclassified by one more.
    """

    models: int = 10
    weighting: LossWeighting = AVERAGE

    def __post_init__(self) -> None:
        if self.models < 1:
            raise ValueError(
                f"{self.name} needs an ensemble of at least one model, got models={self.models}."
            )

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        attack = self.direct.scaled(self.weighting.step_factor(self.models))
        return attack.cost().times(self.models).plus_forward(self.models)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        context.meter.charge(context.rows, self.models, 0)
        keys = [context.again(k).simulated_keys() for k in range(self.models)]
        with torch.no_grad():
            models = [defense.adapt(x, Context(each)) for each in keys]
        attack = self.direct.scaled(self.weighting.step_factor(len(models)))
        point = attack.against(models, context, x, y, self.weighting).max_loss_point
        return AttackResult(point, point)


@dataclass(frozen=True)
class Skip(AdversaryWrapper):
    """Attack the state that an online defense had after the last batch.

    The defense adapts to the current batch before it answers, so the attack lags one step behind.
    PGD-skip of Wu et al. 2020 (RMC), as described in Chen et al. 2022, Example 1. It reads the
    defender's state.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-skip"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not context.threat.state_visible:
            raise PermissionError(
                f"{self.name} reads the defender's state, which this threat model hides. "
                "Use Threat(state_visible=True), or transfer from a copy of the defense with "
                "Transfer."
            )
        point = self.adversary.move(context, defense, x, y).max_loss_point
        return AttackResult(point, point)


@dataclass(frozen=True)
class CleanFallback(AdversaryWrapper):
    """The clean batch, unless the simulated attack causes more errors than the clean batch.

    The released code of Chen et al. does this. The defense then gets credit for rows that the
    attack failed to break only in the simulation. For comparison with published numbers that were
    computed this way; the name says so.
    """

    @property
    def name(self) -> str:
        return f"{self.adversary.name} (clean fallback)"

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, clean_fallback=True)

    def added_forward(self, draws: int) -> int:
        return 2 * draws

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        point = self.adversary.move(context, defense, x, y).point
        coupled = defense.unit != "example"
        errors = []
        for points in (point, x):
            success = context.simulate(defense, points, y).evaluation.success
            errors.append(block(success.long(), coupled))
        attacked, clean = errors
        proposed = torch.where(per_example(attacked > clean, x), point, x)
        return AttackResult(proposed, proposed)


def high_confidence(
    *,
    steps: int = 100,
    step_size: float = 1 / 255,
    restarts: int = 5,
    targets: int = 9,
    name: str = "pgd",
) -> Portfolio:
    """The 14 runs of Chen et al. 2022, App. A.3.

    Args:
        steps: PGD steps of each run.
        step_size: step size in units of the input.
        restarts: untargeted runs on the margin, each from another random start.
        targets: runs toward one class each.
        name: the name shown in tables.
    """
    attack = PGD(steps, step_size)
    untargeted = [Direct(f"{name} {k}", attack, margin) for k in range(restarts)]
    targeted = [Direct(f"{name} to +{k}", attack, NextClass(k)) for k in range(1, targets + 1)]
    return Portfolio(name, (*untargeted, *targeted))
