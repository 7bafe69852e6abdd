"""The basic adversary: one optimizer on one objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last_view
from saddlepoint.attacks.base import Attack, as_attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.early_stopping import StopAtSuccess
from saddlepoint.attacks.ensemble import AVERAGE, Ensemble, LossWeighting
from saddlepoint.attacks.history import RecordingOracle
from saddlepoint.attacks.losses import Loss, margin, restrict
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Oracle, grants
from saddlepoint.defenses import Access, Defense
from saddlepoint.describe import describe
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.properties import AdversaryProperties
from saddlepoint.gradients import Backprop, Estimator, FixedRandomness, Rule, once
from saddlepoint.solvers import SolverStats

RANDOMNESS_CHECKS = 2  # passes that decide whether averaging over draws changes anything
_CHECK_SALT = 104729  # no attack starts from the point at which randomness is checked


@dataclass(frozen=True)
class Direct(Adversary):
    """One optimizer on one objective: attack, loss, aim, gradient rules and estimator.

    Args:
        name: the name shown in tables.
        attack: the optimizer; an object with `needs`, `calls` and `__call__` is adapted.
        loss: per-example loss that the attack maximizes; default: margin.
        aim: which views of the defense the loss is taken of; default: the last view.
        rules: gradient rules by site name; sites without a rule are differentiated exactly.
        estimator: how value and gradient are estimated; default: one backward pass.
        keep: names of the views that the aim reads; None: all.
        respond: let the defense adapt first and differentiate through its adaptation.
        warm: steps of a solver inside the defense that continue from the row's last solution;
            0: every solve starts cold.
        stop_at_success: do not query a row again once it is misclassified. Only for deterministic
            defenses with independent rows.
    """

    name: str
    attack: Attack[Any]
    loss: Loss = margin
    aim: Aim = last_view
    rules: Mapping[str, Rule] = field(default_factory=dict)
    estimator: Estimator = field(default_factory=Backprop)
    keep: frozenset[str] | None = None
    respond: bool = False
    warm: int = 0
    stop_at_success: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "attack", as_attack(self.attack))

    @property
    def needs(self) -> Access:
        # An estimator that needs only scores lets a gradient attack run without gradient access.
        score_only = self.attack.needs == "gradient" and self.estimator.gradient_cost[1] == 0
        return "score" if score_only else self.attack.needs

    @property
    def properties(self) -> AdversaryProperties:
        return AdversaryProperties(
            needs=self.needs,
            approximate_backward=self.estimator.approximate
            or any(rule.approximate for rule in self.rules.values()),
            score_differences=self.estimator.approximate,
            custom_rules=bool(self.rules),
            handles_randomness=self.estimator.handles_randomness,
            through_adaptation=self.respond,
            other_views=self.aim is not last_view,
            minimum_norm=self.attack.minimum_norm,
            query_search=self.attack.stops_at_budget,
        )

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        calls = self.attack.calls
        checks = RANDOMNESS_CHECKS if once(self.estimator) != self.estimator else 0
        if self.attack.needs != "gradient":
            return PassCost(calls * self.estimator.cost + checks, 0)
        forward, backward = self.estimator.gradient_cost
        return PassCost(calls * forward + checks, (calls - 1) * backward + checks)

    def single_run(self) -> Direct:
        return self

    def map_direct(self, change: Callable[[Direct], Direct]) -> Direct:
        return change(self)

    def scaled(self, factor: int) -> Direct:
        """The same adversary with `factor` times as many attack steps."""
        return self if factor == 1 else replace(self, attack=self.attack.scaled(factor))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if not context.exceeds_a_call:
            return self.against([defense], context, x, y)
        # One run per call, so that the tensors of a run stay in the processor's cache.
        results = [
            replace(self, loss=restrict(self.loss, rows)).move(
                context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
            )
            for rows in context.parts
        ]
        return AttackResult(
            torch.cat([result.point for result in results]),
            torch.cat([result.max_loss_point for result in results]),
        )

    def against(
        self,
        models: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        weighting: LossWeighting = AVERAGE,
    ) -> AttackResult:
        """Attack several defenses at once, such as the adapted models of a transductive defense.

        Args:
            models: the defenses; success means that all of them misclassify.
            context: threat model, pass counter and random keys.
            x: clean inputs, [N, ...].
            y: labels, [N].
            weighting: how the losses of several models are combined; default: their mean.

        Raises:
            PermissionError: the adversary needs more access than is granted.
        """
        for defense in models:
            if not grants(context.access(defense), self.needs):
                raise PermissionError(
                    f"{self.name} needs {self.needs} access, but only {context.access(defense)} "
                    "access is available."
                )
        coupled = any(d.coupled or (self.respond and d.unit != "example") for d in models)
        stats = SolverStats.of(len(x), x.device, warm=self.warm)
        objectives = self._objectives(models, context, x, y, stats)
        objective: AttackObjective | Ensemble = objectives[0]
        label: tuple[object, ...] = (self.loss, self.aim)
        if len(models) > 1:
            objective = Ensemble(objectives, weighting, coupled)
            label = (*label, weighting, len(models))
        estimator = self.estimator
        if context.threat.randomness == "fixed":
            estimator = FixedRandomness(estimator)
        # Access was checked above: the oracle grants what the estimator can give.
        oracle = Oracle(
            objective,
            estimator,
            context.meter,
            context.rows,
            context.simulated_keys(),
            self.attack.needs,
            coupled,
        )
        space = context.threat.space
        recorded = RecordingOracle(
            oracle,
            context.history,
            describe(label),
            space.around(x),
            self.attack.stays_inside(space),
        )
        result = self._run(recorded, x, context, random=any(d.random for d in models))
        context.meter.note(context.rows, stats.evaluations + stats.products)
        return result

    def _objectives(
        self,
        models: Sequence[Defense],
        context: AttackContext,
        x: Tensor,
        y: Tensor,
        stats: SolverStats,
    ) -> tuple[AttackObjective, ...]:
        objectives = []
        for k, defense in enumerate(models):
            objective = AttackObjective(
                [defense],
                y,
                self.loss,
                self.aim,
                self.rules,
                self.keep,
                self.respond,
                stats if len(models) == 1 else stats.under(f"model {k}"),
                batch_size=context.batch_size,
            )
            objectives.append(self._checked(objective, context, x))
        return tuple(objectives)

    def _checked(
        self, objective: AttackObjective, context: AttackContext, x: Tensor
    ) -> AttackObjective:
        """The objective, marked `deterministic` if two evaluations confirm it.

        Only a defense that declares to be deterministic, or random only while it adapts, is
        checked. The check is made at a random point of the set and is skipped if the attack needs
        all queries that are left.
        """
        (defense,) = objective.defenses
        gradients = self.needs == "gradient"
        per_call = objective.cost(self.estimator)
        if gradients:
            per_call = objective.gradient_cost(self.estimator)[0]
        needed = RANDOMNESS_CHECKS + self.attack.calls * per_call
        random = defense.random and (self.respond or defense.memory == "none")
        averages = once(self.estimator) != self.estimator
        if random or not averages or context.meter.left(context.rows) < needed:
            return objective
        context.meter.charge(context.rows, RANDOMNESS_CHECKS, RANDOMNESS_CHECKS * gradients)
        point = context.threat.space.sample(x, context.attacker_keys().fold_in(_CHECK_SALT))
        keys = [context.simulated_keys().fold_in(k) for k in range(RANDOMNESS_CHECKS)]
        return objective.checked_deterministic(point, keys, gradients=gradients)

    def _run(
        self, oracle: RecordingOracle, x: Tensor, context: AttackContext, *, random: bool
    ) -> AttackResult:
        space = context.threat.space
        if not self.stop_at_success:
            return self.attack(oracle, x, space, context.attacker_keys())
        if oracle.coupled or random:
            reason = "one misclassification of a randomized defense may be chance"
            if oracle.coupled:
                reason = "the rows of this defense depend on each other"
            raise ValueError(
                f"{self.name} stops at the first success, but {reason}. Use stop_at_success=False."
            )
        stopping = StopAtSuccess.of(oracle, x, space)
        return stopping.finish(self.attack(stopping, x, space, context.attacker_keys()))


@dataclass(frozen=True)
class AroundDirect(Adversary):
    """An adversary that runs one `Direct` in another way, under its name."""

    direct: Direct

    @property
    def name(self) -> str:
        return self.direct.name

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def children(self) -> Sequence[Adversary]:
        return (self.direct,)

    def map_direct(self, change: Callable[[Direct], Direct]) -> Self:
        return replace(self, direct=change(self.direct))
