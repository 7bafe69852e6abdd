"""The attack objective: value and success as a function of the input of one or more defenses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.aims import Aim, last_view
from saddlepoint.attacks.losses import (
    Loss,
    margin,
    merge_rejection,
    misclassified,
    restrict,
    targeted_margin,
)
from saddlepoint.defenses import BlackBox, Context, Defense, Plain
from saddlepoint.defenses.wrapper import innermost
from saddlepoint.gradients import Backprop, Estimator, Evaluation, Rule, ValueAndGradient, once
from saddlepoint.rng import Keys, count_draws
from saddlepoint.solvers import SolverStats


class _Outputs(NamedTuple):
    logits: Tensor  # [V, N, C] of the views that the aim uses
    wrong: Tensor  # [N] bool: the final output is misclassified


@dataclass(frozen=True)
class AttackObjective:
    """The objective per example, over the kept views of all given defenses.

    With several defenses the aim receives the views of all of them, and success means that every
    defense misclassifies the example.

    Args:
        defenses: the defenses.
        y: labels, [N].
        loss: (logits, y) -> value per example; default `margin`.
        aim: combines the losses of the views; default `last_view`, the final view.
        rules: backward rules by name of the site; default none.
        keep: names of the views that the aim uses; default None, all.
        respond: each defense adapts to x first, and gradients pass through the adaptation; default
            False.
        stats: statistics of the solves inside the defenses; default None, not kept.
        deterministic: the defenses draw no random numbers, so estimators need not average over
            draws; default False.
        batch_size: most rows per call of a defense, if a row occurs several times; default 0, no
            row does.
    """

    defenses: Sequence[Defense]
    y: Tensor
    loss: Loss = margin
    aim: Aim = last_view
    rules: Mapping[str, Rule] = field(default_factory=dict)
    keep: frozenset[str] | None = None
    respond: bool = False
    stats: SolverStats | None = None
    deterministic: bool = False
    batch_size: int = 0

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        """Value and success at the points x, [N, ...]; differentiable in x."""
        logits, wrong = self._outputs(x, keys)
        return Evaluation(self.aim(self.loss, logits, self.y), wrong)

    def __getitem__(self, rows: Tensor) -> AttackObjective:
        """The same objective for some of the rows."""
        stats = None if self.stats is None else self.stats[rows]
        defenses = [defense.restrict(rows) for defense in self.defenses]
        return replace(
            self, defenses=defenses, y=self.y[rows], loss=restrict(self.loss, rows), stats=stats
        )

    @property
    def most_rows(self) -> int:
        """Most rows of a batch in which rows occur several times; 0: they must not.

        They may if a row has the same value in any batch. The noise of a network that draws from
        global generators depends on the batch.
        """
        steady = self.stats is None or not self.stats.warm
        independent = steady and not self.respond and all(map(_draws_by_row, self.defenses))
        return self.batch_size if independent else 0

    def evaluate(self, estimator: Estimator, x: Tensor, keys: Keys) -> Evaluation:
        """Value and success at the points x, [N, ...], by an estimator."""
        if not 0 < self.most_rows < len(x):
            return self.through(estimator).evaluate(self, x, keys)
        parts = torch.split(torch.arange(len(x), device=x.device), self.most_rows)
        found = [
            self[rows].evaluate(estimator, part, keys[rows])
            for rows, part in zip(parts, torch.split(x, self.most_rows), strict=True)
        ]
        return Evaluation(*(torch.cat(both) for both in zip(*found, strict=True)))

    def value_and_grad(self, estimator: Estimator, x: Tensor, keys: Keys) -> ValueAndGradient:
        """Value, success and gradient at the points x, [N, ...], by an estimator."""
        return self.through(estimator).value_and_grad(self, x, keys)

    def class_margin_gradients(
        self, estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        """The margins of all other classes and their gradients, by an estimator."""
        return self.through(estimator).value_and_grad(self.class_margins, x, keys)

    def cost(self, estimator: Estimator) -> int:
        """Forward passes per evaluation."""
        return self.through(estimator).cost

    def gradient_cost(self, estimator: Estimator) -> tuple[int, int]:
        """Forward and backward passes per gradient."""
        return self.through(estimator).gradient_cost

    def checked_deterministic(
        self, x: Tensor, keys: Sequence[Keys], *, gradients: bool
    ) -> AttackObjective:
        """This objective with `deterministic` set by a measurement.

        It is deterministic if no evaluation draws a random number and all evaluations agree
        bit for bit.

        Args:
            x: points, [N, ...].
            keys: the random keys of each evaluation.
            gradients: compare gradients as well as values.
        """
        without_stats = replace(self, stats=None)
        results = []
        with count_draws(x.device) as draws:
            for each in keys:
                result = (
                    Backprop().value_and_grad(without_stats, x, each)
                    if gradients
                    else ValueAndGradient(Backprop().evaluate(without_stats, x, each), x)
                )
                results.append(
                    torch.cat([result.evaluation.value[:, None], result.grad.flatten(1)], dim=1)
                )
        equal = all(torch.equal(results[0], other) for other in results[1:])
        return replace(self, deterministic=not draws and equal)

    def through(self, estimator: Estimator) -> Estimator:
        """The estimator that is used here: without averaging if the objective is deterministic."""
        return once(estimator) if self.deterministic else estimator

    def class_margins(self, x: Tensor, keys: Keys) -> Evaluation:
        """The margin of each other class as value, [C - 1, N], class y + 1 first.

        Their maximum is the margin.
        """
        logits, wrong = self._outputs(x, keys)
        classes = logits.shape[-1]
        targets = [(self.y + k) % classes for k in range(1, classes)]
        return Evaluation(
            torch.stack([self.aim(targeted_margin(t), logits, self.y) for t in targets]), wrong
        )

    def _outputs(self, x: Tensor, keys: Keys) -> _Outputs:
        logits, wrong = zip(
            *(self._outputs_of(k, defense, x, keys) for k, defense in enumerate(self.defenses)),
            strict=True,
        )
        # In the type of x, but at least float32: float16 is too coarse for losses, and float64
        # would make the next point float64.
        dtype = torch.promote_types(x.dtype, torch.float32)
        if len(logits) == 1:
            return _Outputs(logits[0].to(dtype), wrong[0])
        return _Outputs(torch.cat([part.to(dtype) for part in logits]), torch.stack(wrong).all(0))

    def _outputs_of(self, k: int, defense: Defense, x: Tensor, keys: Keys) -> _Outputs:
        # The last view belongs to the answer. If nothing else is aimed at, nothing else is needed.
        keep = defense.reads if self.keep is None and self.aim is last_view else self.keep
        ctx = Context(keys, self.rules, keep, self.stats and self.stats.under(str(k)))
        adapted = defense.adapt(x, ctx) if self.respond else defense
        trace = adapted.trace(x, ctx)
        ctx.check_rules()
        answer = merge_rejection(adapted.answer(trace, ctx).detach(), self.y, adapted.rejects)
        kept = trace if self.keep is None else trace.select(self.keep)
        return _Outputs(
            merge_rejection(kept.logits, self.y, adapted.rejects), misclassified(answer, self.y)
        )


def _draws_by_row(defense: Defense) -> bool:
    """Whether rows are independent, with random numbers from their own keys."""
    batch_noise = isinstance(innermost(defense), Plain | BlackBox)
    return defense.unit == "example" and not (defense.random and batch_noise)
