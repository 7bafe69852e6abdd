"""The referee: checks proposed points, evaluates the defense on them, and records the outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import margin, merge_rejection, misclassified
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Answer, Context, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.batch_control import PartialControl
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.episode import Episode
from saddlepoint.evaluation.input_checks import (
    require_access,
    require_defense,
    require_goal,
    require_inputs,
    require_legal_points,
    require_stream,
)
from saddlepoint.evaluation.masks import MaskedPixels
from saddlepoint.evaluation.mutation import fingerprint, require_unchanged
from saddlepoint.evaluation.online import OnlineDefense
from saddlepoint.evaluation.orders import CountErrors
from saddlepoint.evaluation.rejection import no_rejection_scores, no_rejections, rejection_scores
from saddlepoint.evaluation.targeted_goal import TowardClass, against_others
from saddlepoint.evaluation.threat import Threat

Progress = Callable[[int], None]  # called with the number of examples after every batch
# Plays adversaries on fixed examples.
RunAdversaries = Callable[[Sequence[Adversary]], list[Episode]]


@dataclass(frozen=True)
class FixedPoints(Adversary):
    """Proposes fixed points: the clean images by default, or points that were found elsewhere."""

    name: str = "clean"
    points: Tensor | None = None  # [M, ...] indexed by example id; None: the clean images
    needs: Access = "decision"

    def cost(self, draws: int = 1) -> PassCost:  # noqa: ARG002
        return PassCost(0, 0)

    def move(
        self,
        context: AttackContext,
        defense: Defense,  # noqa: ARG002
        x: Tensor,
        y: Tensor,  # noqa: ARG002
    ) -> AttackResult:
        points = x if self.points is None else self.points[context.ids]
        return AttackResult(points, points)


def play(
    defense: Defense,
    adversary: Adversary,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    answers: Mapping[str, Answer] | None = None,
    ids: Tensor | None = None,
    seed: int = 0,
    defender_seed: int | None = None,
    batch_size: int = 128,
    rows_per_call: int | None = None,
    progress: Progress | None = None,
) -> Episode:
    """Evaluate a defense under one adversary, batch by batch.

    In every batch the adversary proposes points, the referee checks that they are legal, and the
    defense adapts to them and is evaluated on them.

    Args:
        defense: the defense.
        adversary: the adversary.
        x: clean inputs, [N, ...].
        y: labels, [N].
        threat: the threat model.
        answers: the outputs to evaluate, by name; None: the answer of the defense.
        ids: example ids, [N], which select the random keys; None: 0 to N - 1.
        seed: seed of the attacker's random keys.
        defender_seed: seed of the defender's random keys; None: `seed`. Attacker and defender have
            different keys either way.
        batch_size: examples per batch.
        rows_per_call: most rows per call of the defense, if a batch may be split into several
            calls because its rows are independent; None: `batch_size`.
        progress: called with the number of examples after every batch.

    Raises:
        TypeError: `defense` is not a `Defense`.
        ValueError: inputs or labels are invalid, the adversary proposes an illegal point, or the
            defense changes itself when it adapts.
        PermissionError: the adversary needs more access than is granted.
    """
    require_defense(defense)
    require_access(adversary, defense, threat)
    require_inputs(x, y, threat)
    require_goal(defense, y, threat)
    require_stream(len(x), threat, batch_size)
    ids = torch.arange(len(x), device=x.device) if ids is None else ids
    batch_size = len(x) if threat.rounds == "one" else batch_size
    per_call = min(rows_per_call or batch_size, batch_size)
    stream = _Stream(defense, threat, answers, x, y.long(), ids, batch_size, per_call)
    if not threat.order.window:
        return stream.play(adversary, seed, defender_seed, progress)
    count_errors = _error_counter(stream, adversary, seed, defender_seed)
    order = threat.order.arrange(stream.y, count_errors)
    return stream[order].play(adversary, seed, defender_seed, progress)[order.argsort()]


@dataclass(frozen=True)
class _Stream:
    """Examples in the order in which they reach the defense."""

    defense: Defense
    threat: Threat
    answers: Mapping[str, Answer] | None
    x: Tensor
    y: Tensor
    ids: Tensor
    batch_size: int
    rows_per_call: int

    def __getitem__(self, order: Tensor) -> _Stream:
        return replace(self, x=self.x[order], y=self.y[order], ids=self.ids[order])

    def play(
        self,
        adversary: Adversary,
        seed: int,
        defender_seed: int | None,
        progress: Progress | None = None,
    ) -> Episode:
        """Evaluate all batches as one episode."""
        return Episode.joined(list(self._batches(adversary, seed, defender_seed, progress)))

    def _batches(
        self, adversary: Adversary, seed: int, defender_seed: int | None, progress: Progress | None
    ) -> Iterator[Episode]:
        """Evaluate batch by batch.

        An online defense keeps its adapted state. An attacker that does not see this state attacks
        its own simulation of it.
        """
        defense = self.defense
        simulated = self.defense
        for rows in torch.split(torch.arange(len(self.x), device=self.x.device), self.batch_size):
            started = time.perf_counter()
            context = AttackContext.open(
                self.threat, self.ids[rows], seed, defender_seed, self.rows_per_call
            )
            x = self.x[rows]
            y = self.y[rows]
            queried = OnlineDefense(defense) if self.threat.online_queries else simulated
            points = self._proposed(adversary, context, queried, x, y)
            defense = queried.state if isinstance(queried, OnlineDefense) else defense
            results = list(_evaluate_draws(context, defense, points, x, y, self.answers))
            yield _record(adversary, context, results, context.draws(defense), x, points, started)
            if defense.memory == "stream":
                defense = results[0].adapted
                hidden = self.defense.random and not self.threat.state_visible
                simulated = _adapt_simulated(simulated, points, context) if hidden else defense
            if progress:
                progress(len(rows))

    def _proposed(
        self, adversary: Adversary, context: AttackContext, defense: Defense, x: Tensor, y: Tensor
    ) -> Tensor:
        """The points of the adversary; rows that it does not control stay clean."""
        control = self.threat.batch_control
        controlled = control.rows(context.ids)
        if not controlled.all():
            defense = PartialControl(defense, controlled, x, control)
        if self.threat.mask is not None:
            defense = MaskedPixels(defense, self.threat.mask, x)
        if self.threat.target_class is not None:
            defense = TowardClass(defense, self.threat.target_class)
            y = torch.zeros_like(y)
        points = adversary.move(context, defense, x, y).point.detach()
        require_legal_points(adversary.name, points, x, self.threat)
        if self.threat.mask is not None:
            points = self.threat.mask.apply(points, x)
        return points if controlled.all() else torch.where(per_example(controlled, x), points, x)


def _error_counter(
    stream: _Stream, adversary: Adversary, seed: int, defender_seed: int | None
) -> CountErrors:
    """Count the errors in an order, as the attacker simulates it.

    The points are computed once, in the natural order. If the random keys of the defender are
    private, the attacker simulates with other keys.
    """
    simulated_seed = defender_seed if stream.threat.randomness_known else ~seed

    @cache
    def attacked() -> _Stream:
        return replace(stream, x=stream.play(adversary, seed, simulated_seed).points)

    def count_errors(order: Tensor) -> float:
        episode = attacked()[order].play(FixedPoints(), seed, simulated_seed)
        return float((1 - episode.correct).sum())

    return count_errors


def _record(
    adversary: Adversary,
    context: AttackContext,
    results: Sequence[_DrawResult],
    draws: int,
    x: Tensor,
    points: Tensor,
    started: float,
) -> Episode:
    """The episode of one batch.

    The first `draws` results are evaluated. The strongest adversary is selected on the last ones.
    """
    evaluated = results[:draws]
    selection = results[-draws:]
    return Episode(
        adversary=adversary.name,
        points=points,
        correct=torch.stack([result.correct for result in evaluated]).mean(0),
        chosen=torch.stack([result.correct for result in selection]).mean(0),
        answered=torch.stack([result.answered for result in evaluated]).mode(0).values,
        margin=torch.stack([result.margin for result in evaluated]).mean(0),
        batch=torch.zeros(len(x), dtype=torch.long),
        size=context.threat.space.size(points - x),
        copies=(points == x).flatten(1).all(1),
        forward=context.meter.forward,
        backward=context.meter.backward,
        seconds=time.perf_counter() - started,
        loss_curve=context.history.loss_curve(),
        rejected=torch.stack([result.rejected for result in evaluated]).mean(0),
        rejection_scores=torch.cat([result.rejection_scores for result in evaluated], dim=1),
    )


def _adapt_simulated(defense: Defense, points: Tensor, context: AttackContext) -> Defense:
    """Adapt the attacker's simulation of an online defense, with the attacker's own random keys."""
    with torch.no_grad():
        return defense.adapt(points, Context(context.simulated_keys()))


class _DrawResult(NamedTuple):
    """The outputs of the defense for one random draw."""

    correct: Tensor  # [D, N] 0 or 1
    answered: Tensor  # [D, N] classes
    margin: Tensor  # [D, N]
    rejected: Tensor  # [2, D, N] 0 or 1; [2, 0, 0] for a defense that cannot reject
    rejection_scores: Tensor  # [4, 1, D, N]; [4, 0, 0, 0] for a defense that cannot reject
    adapted: Defense


def _evaluate_draws(
    context: AttackContext,
    defense: Defense,
    points: Tensor,
    clean: Tensor,
    y: Tensor,
    answers: Mapping[str, Answer] | None,
) -> Iterator[_DrawResult]:
    """Evaluate the defense on the points, once per random draw.

    A randomized defense is evaluated on twice the draws of the threat model: on the first half for
    the result, on the second half to select the strongest adversary. An attacker that knows the
    randomness selects on the first half. A rejection counts as correct; whether the clean image
    would be rejected too is recorded.
    """
    if context.exceeds_a_call:
        parts = [
            _evaluate_draws(
                context.restrict(rows),
                defense.restrict(rows),
                points[rows],
                clean[rows],
                y[rows],
                answers,
            )
            for rows in context.parts
        ]
        for results in zip(*parts, strict=True):
            yield _joined(results, defense)
        return
    twice = defense.random and not context.threat.randomness_known
    before = fingerprint(defense) if defense.memory != "none" else None
    for draw in range(context.draws(defense) * (2 if twice else 1)):
        ctx = Context(context.defender_keys(draw), keep=defense.reads if answers is None else None)
        with torch.no_grad():
            adapted = defense.adapt(points, ctx)
            if before is not None and draw == 0:
                require_unchanged(defense, before)
            logits = _outputs(adapted, points, ctx, answers)
            rejected = no_rejections()
            scores = no_rejection_scores()
            if adapted.rejects:
                clean_ctx = Context(context.defender_keys(draw))
                both = (logits, _outputs(adapted, clean, clean_ctx, answers))
                rejected = torch.stack([(z.argmax(-1) == z.shape[-1] - 1).double() for z in both])
                scores = torch.cat([rejection_scores(z, y) for z in both])[:, None]
        classes = merge_rejection(logits, y, adapted.rejects)
        labels = y
        if context.threat.target_class is not None:
            classes = against_others(logits, context.threat.target_class)
            labels = torch.zeros_like(y)
        correct = (~misclassified(classes, labels)).double()
        distance = margin(classes, labels)
        yield _DrawResult(correct, logits.argmax(-1), distance, rejected, scores, adapted)


def _joined(parts: Sequence[_DrawResult], defense: Defense) -> _DrawResult:
    """One draw of a whole batch of independent rows, from its parts."""
    correct, answered, distance, rejected, scores = (
        torch.cat(each, dim=-1) for each in zip(*(part[:-1] for part in parts), strict=True)
    )
    return _DrawResult(correct, answered, distance, rejected, scores, defense)


def _outputs(
    adapted: Defense, x: Tensor, ctx: Context, answers: Mapping[str, Answer] | None
) -> Tensor:
    """The logits of all answers, [D, N, C], or [D, N, C + 1] for a defense that may reject."""
    trace = adapted.trace(x, ctx)
    if answers is None:
        return torch.stack([adapted.answer(trace, ctx)])
    return torch.stack([answer(trace) for answer in answers.values()])
