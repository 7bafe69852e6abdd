"""The referee: checks every proposed point, lets the defense answer with its own coins, and keeps the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.history import merge_loss_curves, no_loss_curve
from saddlepoint.attacks.losses import fooled, margin, refusing
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Answer, Context, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.batch_control import PartialControl
from saddlepoint.evaluation.mutation import fingerprint, refuse_mutation
from saddlepoint.evaluation.online import OnlineDefense
from saddlepoint.evaluation.orders import Harm
from saddlepoint.evaluation.rejection import no_rejection_scores, scored
from saddlepoint.evaluation.threat import Threat

Progress = Callable[[int], None]  # told how many examples were just finished


def never() -> Tensor:
    """The rejections of a defense that rejects nothing."""
    return torch.zeros(2, 0, 0, dtype=torch.float64)


@dataclass(frozen=True)
class Episode:
    """One adversary against one defense over all examples, as the referee saw it."""

    adversary: str
    points: Tensor  # [N, ...] what was proposed
    correct: Tensor  # [D, N] share of draws answered rightly
    chosen: Tensor  # [D, N] the same over the draws that a choice among adversaries may look at: others, unless coins are public
    answered: Tensor  # [D, N] the class answered most often over the draws that `correct` counts; C is a refusal
    margin: Tensor  # [D, N] of the wrong classes, mean over the same draws: positive where the answer is wrong
    batch: Tensor  # [N] which examples were answered together
    size: Tensor  # [N] length of the perturbation in the threat's norm
    copies: Tensor  # [N] bool: proposed the clean image itself
    forward: Tensor  # [N] passes spent by the adversary
    backward: Tensor  # [N]
    seconds: float
    loss_curve: Tensor = field(
        default_factory=no_loss_curve
    )  # [5, K] how its objective rose, summed over examples: `Tape.ascent`
    # [2, D, N] share of draws that refused the point, which counts as right, and that would have refused the clean image instead:
    # rej_U(S) of Goldwasser et al. 2020 is the mean of the latter. [2, 0, 0] of a defense that rejects nothing.
    rejected: Tensor = field(default_factory=never)
    # [4, S, D, N] of each of the same draws: `scored` at the point, then at the clean image; [4, 0, 0, 0] where nothing is refused
    rejection_scores: Tensor = field(default_factory=no_rejection_scores)

    def to(self, device: str | torch.device) -> Episode:
        tensors = {
            f.name: getattr(self, f.name).to(device)
            for f in fields(self)
            if f.name not in ("adversary", "seconds")
        }
        return replace(self, **tensors)

    def __getitem__(self, rows: Tensor) -> Episode:
        """The same episode with its examples in another order, or some of them; how the objective rose remains that of all."""
        n = len(self.batch)
        each = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _WHOLE}
        return replace(
            self,
            **{
                k: v[rows] if k == "points" else v[..., rows]
                for k, v in each.items()
                if k == "points" or v.shape[-1] == n
            },
        )

    @classmethod
    def joined(cls, parts: Sequence[Episode]) -> Episode:
        """Episodes of one adversary over several batches as one."""
        counts = [int(p.batch.amax()) + 1 for p in parts]
        before = [sum(counts[:k]) for k in range(len(parts))]
        return cls(
            adversary=parts[0].adversary,
            points=torch.cat([p.points for p in parts]),
            correct=torch.cat([p.correct for p in parts], dim=1),
            chosen=torch.cat([p.chosen for p in parts], dim=1),
            answered=torch.cat([p.answered for p in parts], dim=1),
            margin=torch.cat([p.margin for p in parts], dim=1),
            batch=torch.cat([p.batch + offset for p, offset in zip(parts, before, strict=True)]),
            size=torch.cat([p.size for p in parts]),
            copies=torch.cat([p.copies for p in parts]),
            forward=torch.cat([p.forward for p in parts]),
            backward=torch.cat([p.backward for p in parts]),
            seconds=sum(p.seconds for p in parts),
            loss_curve=merge_loss_curves([p.loss_curve for p in parts]),
            rejected=torch.cat([p.rejected for p in parts], dim=2),
            rejection_scores=torch.cat([p.rejection_scores for p in parts], dim=3),
        )


_WHOLE = (
    "adversary",
    "seconds",
    "loss_curve",
)  # fields of an episode that are not lists of examples


@dataclass(frozen=True)
class FixedPoints(Adversary):
    """The adversary that proposes given points: the clean images by default, or points found elsewhere."""

    name: str = "clean"
    points: Tensor | None = None  # indexed by example id
    needs: Access = "decision"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:  # noqa: ARG002
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
    progress: Progress | None = None,
) -> Episode:
    """One episode: batch by batch the attacker proposes, the referee checks, the defender adapts and answers.

    The defender's coins come from `defender_seed`, or from `seed` like the attacker's: each role tosses its own.
    """
    if not isinstance(defense, Defense):
        raise TypeError(
            f"play needs a Defense, got {type(defense).__name__}. Wrap a network in `Plain(net)`, any callable in `BlackBox(fn)`."
        )
    if not (grants(threat.access, adversary.needs) and grants(defense.grants, adversary.needs)):
        raise PermissionError(
            f"{adversary.name} asks for {adversary.needs} access; the threat model grants {threat.access} access and the defense "
            f"gives {defense.grants} access."
        )
    _refuse_inputs(x, y, threat)
    _refuse_stream(len(x), threat, batch_size)
    ids = torch.arange(len(x), device=x.device) if ids is None else ids
    batch_size = len(x) if threat.rounds == "one" else batch_size
    stream = _Stream(defense, threat, answers, x, y.long(), ids, batch_size)
    if not threat.order.window:
        return Episode.joined(list(stream.rounds(adversary, seed, defender_seed, progress)))
    order = threat.order.arrange(stream.y, _harm(stream, adversary, seed, defender_seed))
    return Episode.joined(list(stream[order].rounds(adversary, seed, defender_seed, progress)))[
        order.argsort()
    ]


@dataclass(frozen=True)
class _Stream:
    """Examples in the order in which they are sent, and the defense that meets them."""

    defense: Defense
    threat: Threat
    answers: Mapping[str, Answer] | None
    x: Tensor
    y: Tensor
    ids: Tensor
    batch_size: int

    def __getitem__(self, order: Tensor) -> _Stream:
        return replace(self, x=self.x[order], y=self.y[order], ids=self.ids[order])

    def rounds(
        self, adversary: Adversary, seed: int, defender_seed: int | None, progress: Progress | None
    ) -> Iterator[Episode]:
        """The game of every batch. An online defense goes on from what it became; an attacker who may not see it, from its copy."""
        defense = believed = self.defense
        for rows in torch.split(torch.arange(len(self.x), device=self.x.device), self.batch_size):
            started = time.perf_counter()
            context = AttackContext.open(self.threat, self.ids[rows], seed, defender_seed)
            x = self.x[rows]
            y = self.y[rows]
            mine = self.threat.batch_control.rows(self.ids[rows])
            seen = OnlineDefense(defense) if self.threat.online_queries else believed
            shown = seen if mine.all() else PartialControl(seen, mine, x, self.threat.batch_control)
            proposed = adversary.move(context, shown, x, y).point.detach()
            _refuse_illegal(adversary.name, proposed, x, self.threat)
            proposed = proposed if mine.all() else torch.where(per_example(mine, x), proposed, x)
            defense = seen.state if isinstance(seen, OnlineDefense) else defense
            rulings = list(_judge(context, defense, proposed, x, y, self.answers))
            yield _recorded(
                adversary, context, rulings, context.draws(defense), x, proposed, started
            )
            if defense.memory == "stream":
                defense = rulings[0].became
                hidden = self.defense.random and not self.threat.state_visible
                believed = _simulated(believed, proposed, context) if hidden else defense
            if progress:
                progress(len(rows))


def _harm(stream: _Stream, adversary: Adversary, seed: int, defender_seed: int | None) -> Harm:
    """How many answers go wrong in an order, as the attacker rehearses it: on points that it finds once, in the natural order."""
    rehearsed = (
        defender_seed if stream.threat.randomness_known else ~seed
    )  # private coins are not the attacker's to rehearse with

    @cache
    def scouted() -> _Stream:
        return replace(
            stream, x=Episode.joined(list(stream.rounds(adversary, seed, rehearsed, None))).points
        )

    def harm(order: Tensor) -> float:
        answered = Episode.joined(
            list(scouted()[order].rounds(FixedPoints(), seed, rehearsed, None))
        )
        return float((1 - answered.correct).sum())

    return harm


def _recorded(
    adversary: Adversary,
    context: AttackContext,
    rulings: Sequence[_Ruling],
    draws: int,
    x: Tensor,
    proposed: Tensor,
    started: float,
) -> Episode:
    judging = rulings[:draws]
    choosing = rulings[-draws:]
    return Episode(
        adversary=adversary.name,
        points=proposed,
        correct=torch.stack([ruling.right for ruling in judging]).mean(0),
        chosen=torch.stack([ruling.right for ruling in choosing]).mean(0),
        answered=torch.stack([ruling.answered for ruling in judging]).mode(0).values,
        margin=torch.stack([ruling.margin for ruling in judging]).mean(0),
        batch=torch.zeros(len(x), dtype=torch.long),
        size=context.threat.space.size(proposed - x),
        copies=(proposed == x).flatten(1).all(1),
        forward=context.meter.forward,
        backward=context.meter.backward,
        seconds=time.perf_counter() - started,
        loss_curve=context.history.loss_curve(),
        rejected=torch.stack([ruling.rejected for ruling in judging]).mean(0),
        rejection_scores=torch.cat([ruling.rejection_scores for ruling in judging], dim=1),
    )


def _simulated(believed: Defense, proposed: Tensor, context: AttackContext) -> Defense:
    """What the attacker's own copy becomes, with coins of the attacker's own."""
    with torch.no_grad():
        return believed.adapt(proposed, Context(context.simulated_keys()))


class _Ruling(NamedTuple):
    right: Tensor  # [D, N] 0 or 1
    answered: Tensor  # [D, N] classes
    margin: Tensor  # [D, N]
    rejected: Tensor  # [2, D, N] 0 or 1; [2, 0, 0] of a defense that rejects nothing
    rejection_scores: Tensor  # [4, 1, D, N]; [4, 0, 0, 0] of a defense that rejects nothing
    became: Defense


def _judge(
    context: AttackContext,
    defense: Defense,
    x: Tensor,
    clean: Tensor,
    y: Tensor,
    answers: Mapping[str, Answer] | None,
) -> Iterator[_Ruling]:
    """The defender's answers. A random defense is asked twice as often as the threat says: to choose an attack, and to judge it.

    An attacker who knows the coins chooses by them. A refusal counts as right; whether the clean image is refused too is on record.
    """
    twice = defense.random and not context.threat.randomness_known
    before = fingerprint(defense) if defense.memory != "none" else None
    for draw in range(context.draws(defense) * (2 if twice else 1)):
        ctx = Context(context.defender_keys(draw), keep=defense.reads if answers is None else None)
        with torch.no_grad():
            adapted = defense.adapt(x, ctx)
            if before is not None and draw == 0:
                refuse_mutation(defense, before)
            logits = _columns(adapted, x, ctx, answers)
            rejected = never()
            scores = no_rejection_scores()  # [D, N, C], or C + 1
            if adapted.rejects:
                beside = _columns(adapted, clean, Context(context.defender_keys(draw)), answers)
                rejected = torch.stack(
                    [(z.argmax(-1) == z.shape[-1] - 1).double() for z in (logits, beside)]
                )
                scores = torch.cat([scored(z, y) for z in (logits, beside)])[:, None]
        judged = refusing(logits, y, adapted.rejects)
        yield _Ruling(
            (~fooled(judged, y)).double(),
            logits.argmax(-1),
            margin(judged, y),
            rejected,
            scores,
            adapted,
        )


def _columns(
    adapted: Defense, x: Tensor, ctx: Context, answers: Mapping[str, Answer] | None
) -> Tensor:
    """[D, N, C]: what is answered in every column."""
    trace = adapted.trace(x, ctx)
    columns = (
        [adapted.answer(trace, ctx)]
        if answers is None
        else [answer(trace) for answer in answers.values()]
    )
    return torch.stack(columns)


def _refuse_inputs(x: Tensor, y: Tensor, threat: Threat) -> None:
    if not len(x) or len(x) != len(y):
        raise ValueError(
            f"expected at least one input and a label for each, got {len(x)} inputs and {len(y)} labels."
        )
    if y.ndim != 1 or y.is_floating_point():
        raise ValueError(
            f"labels must be one whole number per input, got {y.dtype} of shape {list(y.shape)}."
        )
    if not threat.space.contains(x, x).all():
        low, high = threat.space.box
        raise ValueError(
            f"inputs must lie in the box [{low:g}, {high:g}] of the perturbation set, found values from {x.amin().item():.4g} to "
            f"{x.amax().item():.4g}. Pass pixels and normalize inside the defense, or give the set another `box`."
        )


def _refuse_stream(examples: int, threat: Threat, batch_size: int) -> None:
    window = threat.order.window
    if not window:
        return
    if examples < batch_size:
        raise ValueError(
            f"the stream of {examples} examples is shorter than one batch of {batch_size}, so there is nothing to order. "
            "Give a smaller batch_size, more examples, or order=Natural()."
        )
    if window % batch_size:
        raise ValueError(
            f"a window of {window} examples is no whole number of batches of {batch_size}: some batch would mix two windows. Give "
            f"the order window={batch_size * max(window // batch_size, 1)} or another batch_size."
        )


def _refuse_illegal(name: str, proposed: Tensor, x: Tensor, threat: Threat) -> None:
    if proposed.shape != x.shape:
        raise ValueError(
            f"{name} proposed points of shape {tuple(proposed.shape)} for inputs of shape {tuple(x.shape)}."
        )
    if not proposed.isfinite().all():
        raise ValueError(f"{name} proposed points that are not finite numbers.")
    outside = ~threat.space.contains(proposed, x)
    if outside.any():
        worst = threat.space.size(proposed - x).amax().item()
        raise ValueError(
            f"{name} left the perturbation set on {int(outside.sum())} of {len(x)} examples: "
            f"size {worst:.6g}, allowed is {threat.space}."
        )
