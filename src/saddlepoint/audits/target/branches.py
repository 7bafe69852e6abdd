"""Choices that a target makes for each image, by the highest of several scores or by a threshold, and their alternatives.

A gradient knows only the way that was taken: behind a router's border another expert may err. Who forces the choice can climb what
the other way answers and what decides for it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.combinators import MaxLossPoint

_THRESHOLDS = {
    "gt": 1,
    "ge": 1,
    "lt": -1,
    "le": -1,
}  # the sign of the first argument in what must be positive
_HIGHEST = ("max", "topk")  # that say which it was beside how high
_CHOICES = 3
_WAYS = 16  # at most: more choices are the steps of an iteration, more ways are dear
_LOOKED_AT = 64  # ways, at most, of which it is asked whether they change anything


@dataclass(frozen=True)
class Branch:
    """The `way`-th alternative of the `choice`-th choice that a call makes, for all rows or for one after the other."""

    choice: int
    way: int
    each: int = 0  # so many choices for every row, one row after the other; 0: for all rows at once

    def __str__(self) -> str:
        return f"{self.choice + 1}.{self.way + 1}"


@dataclass
class _Choices(TorchFunctionMode):
    """Every choice of a call, for all of its rows at once or for one at a time; one of them may be forced."""

    rows: int
    singly: bool = False
    forced: Branch | None = None
    scores: list[Tensor] = field(default_factory=list)  # each [rows, ways], or [1, ways]

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        which: Any = (
            getattr(out, "indices", None) if name in _HIGHEST else out
        )  # of the highest of all numbers there is no index
        scores = self._scores(name, args, which)
        if scores is None:
            return out
        self.scores.append(scores)
        if self.forced is None or not self._here(self.forced):
            return out
        forced = torch.full_like(which, self.forced.way)
        # How high the highest was stays: a confidence that is read off beside a label would fall with another label.
        return forced if which is out else type(out)((out.values, forced))

    def _here(self, route: Branch) -> bool:
        last = len(self.scores) - 1
        # Whoever goes on until a choice falls otherwise must not be held up for ever.
        return (
            route.choice == last % route.each and last < route.each * self.rows
            if route.each
            else route.choice == last
        )

    def _scores(self, name: str, args: Any, out: Any) -> Tensor | None:
        """[N, ways] by which something was chosen for each row; None if nothing was."""
        first = args[0] if args else None
        if not (
            isinstance(out, Tensor) and isinstance(first, Tensor) and first.is_floating_point()
        ):
            return None
        rows = (
            1 if self.singly else self.rows
        )  # one row may be taken out of its batch, or come as a batch of its own
        if out.numel() != rows or not (
            self.singly or (out.ndim > 0 and first.ndim > 0 and len(out) == len(first) == rows)
        ):
            return None
        if name in ("argmax", *_HIGHEST) and first.numel() > rows:
            scores = first.reshape(rows, -1)
            return (
                scores if torch.equal(scores.argmax(1), out.reshape(rows)) else None
            )  # and not the lowest
        if name in _THRESHOLDS:
            above = _THRESHOLDS[name] * (first - args[1]).reshape(rows)
            return torch.stack([-above, above], dim=1) / 2
        return None


class ForcedBranch(DefenseWrapper):
    """A defense that takes a given route: the view `way` answers so, and `choice` is as wrong about y as the route is preferred."""

    replaces_views: ClassVar[bool] = True

    def __init__(self, inner: Defense, route: Branch, y: Tensor) -> None:
        super().__init__(inner)
        self.route = route
        self.y = y

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return ForcedBranch(inner, self.route, self.y if rows is None else self.y[rows])

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        taken = self.taken(x, ctx)
        if taken is None:
            logits = self.inner.trace(x, ctx).last
            return Trace((View("choice", logits), View("way", logits)))
        logits, scores = taken
        others = torch.arange(scores.shape[1], device=scores.device) != self.route.way
        ahead = scores[:, self.route.way] - scores[:, others].amax(1)
        right = torch.nn.functional.one_hot(self.y, logits.shape[1]).to(logits)
        return Trace((View("choice", -ahead[:, None] * right), View("way", logits)))

    def taken(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor] | None:
        """What is answered on the route, [N, C], and what decides for it, [N, ways]; None of images that do not make the choice."""
        route = self.route
        each = self.route.each
        with _Choices(len(x), bool(each), route) as made:
            logits = self.inner.trace(x, ctx).last
        if each and len(made.scores) == each * len(x):
            return logits, torch.cat(made.scores[route.choice :: each]).to(logits)
        return (
            (logits, made.scores[route.choice].to(logits))
            if not each and len(made.scores) > route.choice
            else None
        )


@dataclass(frozen=True)
class AgainstBranch(AdversaryWrapper):
    """The adversary against the defense on another route: its points of highest value, where it must win on both views."""

    route: Branch = Branch(0, 0)

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-{self.route}"

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return MaxLossPoint(self.adversary).move(
            context, ForcedBranch(defense, self.route, y), x, y
        )


def find_branches(defense: Defense, x: Tensor, y: Tensor, ctx: Context) -> tuple[Branch, ...]:
    """The ways that change what some image is answered; none where there are too many.

    Where rows choose together none, they may do so one after the other, each as it does alone.
    """
    with torch.no_grad(), _Choices(len(x)) as made:
        answer = defense.trace(x, ctx).last
    choices = made.scores
    each = 0
    if not choices:
        with torch.no_grad(), _Choices(1, singly=True) as alone:
            defense.trace(x[:1], Context(ctx.keys[torch.arange(1)]))
        each = len(alone.scores)
        with torch.no_grad(), _Choices(len(x), singly=True) as made:
            defense.trace(x, ctx)
        rows_alike = bool(each) and len(made.scores) == each * len(x)
        shaped = [made.scores[k::each] for k in range(each)] if rows_alike else []
        choices = [torch.cat(rows) for rows in shaped if len({row.shape for row in rows}) == 1]
        if len(choices) < len(shaped):
            return ()
    few = [
        (k, scores.shape[1])
        for k, scores in enumerate(choices)
        if scores.shape[1] <= _WAYS and not _answers(scores, answer)
    ]
    ways = [Branch(k, way, each) for k, count in few for way in range(count)]
    if len(ways) > _LOOKED_AT:
        return ()
    ways = [route for route in ways if _changes(ForcedBranch(defense, route, y), answer, x, ctx)]
    return (
        tuple(ways)
        if len({route.choice for route in ways}) <= _CHOICES and len(ways) <= _WAYS
        else ()
    )


def _answers(scores: Tensor, answer: Tensor) -> bool:
    """Is the choice the answer itself?"""
    return scores.shape == answer.shape and torch.equal(scores.argmax(1), answer.argmax(1))


def _changes(forced: ForcedBranch, answer: Tensor, x: Tensor, ctx: Context) -> bool:
    with torch.no_grad():
        taken = forced.taken(x, ctx)
    return taken is not None and not torch.allclose(taken[0], answer, rtol=1e-4, atol=1e-6)
