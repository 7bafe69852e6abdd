"""From defenses to an objective: what the attacker's value and success are, as a function of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last
from saddlepoint.attacks.losses import Loss, fooled, margin, refusing, restrict, targeted_margin
from saddlepoint.defenses import Context, Defense
from saddlepoint.gradients import Backprop, Estimator, Evaluation, Rule, ValueAndGradient, once
from saddlepoint.rng import Keys, count_draws
from saddlepoint.solvers import SolverStats


@dataclass(frozen=True)
class AttackObjective:
    """The attacker's per-example objective over all kept views of all given defenses.

    With several defenses the views of all are aimed at together, and success means that every one of them errs. `respond` lets each
    defense adapt to x first and differentiates through that. One that is `deterministic` tosses no coins: nothing is averaged over draws.
    """

    defenses: Sequence[Defense]
    y: Tensor  # [N]
    loss: Loss = margin
    aim: Aim = last
    rules: Mapping[str, Rule] = field(default_factory=dict)
    keep: frozenset[str] | None = None
    respond: bool = False
    stats: SolverStats | None = None  # on the solves inside the defenses; None: none are taken
    deterministic: bool = False

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        logits, wrong = self._look(x, keys)
        return Evaluation(self.aim(self.loss, logits, self.y), wrong)

    def __getitem__(self, rows: Tensor) -> AttackObjective:
        """The same objective for some of the rows."""
        stats = None if self.stats is None else self.stats[rows]
        defenses = [defense.restrict(rows) for defense in self.defenses]
        return replace(
            self, defenses=defenses, y=self.y[rows], loss=restrict(self.loss, rows), stats=stats
        )

    def evaluate(self, estimator: Estimator, x: Tensor, keys: Keys) -> Evaluation:
        return self.through(estimator).evaluate(self, x, keys)

    def value_and_grad(self, estimator: Estimator, x: Tensor, keys: Keys) -> ValueAndGradient:
        return self.through(estimator).value_and_grad(self, x, keys)

    def class_margin_gradients(
        self, estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        return self.through(estimator).value_and_grad(self.class_margins, x, keys)

    def cost(self, estimator: Estimator) -> int:
        """Forward passes of a reading."""
        return self.through(estimator).cost

    def gradient_cost(self, estimator: Estimator) -> tuple[int, int]:
        """Forward and backward passes of a slope."""
        return self.through(estimator).gradient_cost

    def checked_deterministic(
        self, x: Tensor, keys: Sequence[Keys], *, gradients: bool
    ) -> AttackObjective:
        """The goal; `deterministic` if no look at x with these coins tosses any, and all show the same, gradients too if it `climbs`."""
        quiet = replace(self, stats=None)
        shown = []
        with count_draws(x.device) as heard:
            for each in keys:
                slope = (
                    Backprop().value_and_grad(quiet, x, each)
                    if gradients
                    else ValueAndGradient(Backprop().evaluate(quiet, x, each), x)
                )
                shown.append(
                    torch.cat([slope.evaluation.value[:, None], slope.grad.flatten(1)], dim=1)
                )
        return replace(
            self,
            deterministic=not heard and all(torch.equal(shown[0], other) for other in shown[1:]),
        )

    def through(self, estimator: Estimator) -> Estimator:
        """What is left of an estimator here."""
        return once(estimator) if self.deterministic else estimator

    def class_margins(self, x: Tensor, keys: Keys) -> Evaluation:
        """Value [C-1, N]: the margin of each other class, class y + 1 first. Their maximum is the margin."""
        logits, wrong = self._look(x, keys)
        classes = logits.shape[-1]
        targets = [(self.y + k) % classes for k in range(1, classes)]
        return Evaluation(
            torch.stack([self.aim(targeted_margin(t), logits, self.y) for t in targets]), wrong
        )

    def _look(self, x: Tensor, keys: Keys) -> tuple[Tensor, Tensor]:  # [V, N, C], [N]
        shown, wrong = zip(
            *(self._ask(k, defense, x, keys) for k, defense in enumerate(self.defenses)),
            strict=True,
        )
        # In the type of x, at least single: a half has no room for losses, and a double would turn the next point into one.
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.cat([logits.to(dtype) for logits in shown]), torch.stack(wrong).all(0)

    def _ask(
        self, k: int, defense: Defense, x: Tensor, keys: Keys
    ) -> tuple[Tensor, Tensor]:  # [V, N, C], [N]
        # The last view is the answer's: where nothing else is aimed at, nothing else need be computed.
        keep = defense.reads if self.keep is None and self.aim is last else self.keep
        ctx = Context(keys, self.rules, keep, self.stats and self.stats.under(str(k)))
        answering = defense.adapt(x, ctx) if self.respond else defense
        trace = answering.trace(x, ctx)
        ctx.refuse_unknown_rules()
        wrong = fooled(
            refusing(answering.answer(trace, ctx).detach(), self.y, answering.rejects), self.y
        )
        kept = trace if self.keep is None else trace.select(self.keep)
        return refusing(kept.logits, self.y, answering.rejects), wrong
