"""Choices that a target makes for each image, by the highest of several scores or by a threshold, and their alternatives.

A gradient knows only the way that was taken: behind a router's border another expert may err. Who forces the choice can climb what
the other way answers and what decides for it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from saddlepoint.attack.best import Found
from saddlepoint.defense import Context, Defense, Trace, View
from saddlepoint.game.adversary import Around, Peak, Turn

_THRESHOLDS = {"gt": 1, "ge": 1, "lt": -1, "le": -1}  # the sign of the first argument in what must be positive
_CHOICES, _WAYS = 3, 16  # at most: more choices are the steps of an iteration, more ways are dear


@dataclass(frozen=True)
class Route:
    """The `way`-th alternative of the `choice`-th choice that a call makes."""

    choice: int
    way: int

    def __str__(self) -> str:
        return f"{self.choice + 1}.{self.way + 1}"


@dataclass
class _Choices(TorchFunctionMode):
    """Every choice of a call; one of them may be forced."""

    rows: int
    forced: Route | None = None
    scores: list[Tensor] = field(default_factory=list)  # each [N, ways]

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        scores = self._scores(getattr(func, "__name__", ""), args, out)
        if scores is None:
            return out
        self.scores.append(scores)
        here = self.forced is not None and self.forced.choice == len(self.scores) - 1
        return torch.full_like(out, self.forced.way) if here and self.forced is not None else out

    def _scores(self, name: str, args: Any, out: Any) -> Tensor | None:
        """[N, ways] by which something was chosen for each row; None if nothing was."""
        first = args[0] if args else None
        if not (isinstance(out, Tensor) and isinstance(first, Tensor) and first.is_floating_point()):
            return None
        if out.ndim == 0 or first.ndim == 0 or not len(out) == out.numel() == len(first) == self.rows:
            return None
        if name == "argmax" and first.numel() > self.rows:
            return first.reshape(self.rows, -1)
        if name in _THRESHOLDS:
            above = _THRESHOLDS[name] * (first - args[1]).reshape(self.rows)
            return torch.stack([-above, above], dim=1) / 2
        return None


class Forced(Defense):
    """A defence that takes a given route: the view `way` answers so, and `choice` is as wrong about y as the route is preferred."""

    def __init__(self, inner: Defense, route: Route, y: Tensor) -> None:
        self.inner, self.route, self.y = inner, route, y

    def restrict(self, rows: Tensor) -> Defense:
        return Forced(self.inner.restrict(rows), self.route, self.y[rows])

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with _Choices(len(x), self.route) as made:
            logits = self.inner.trace(x, ctx).last
        if len(made.scores) <= self.route.choice:  # these images are answered without that choice
            return Trace((View("choice", logits), View("way", logits)))
        scores, way = made.scores[self.route.choice].to(logits), self.route.way
        others = torch.arange(scores.shape[1], device=scores.device) != way
        ahead = scores[:, way] - scores[:, others].amax(1)
        right = torch.nn.functional.one_hot(self.y, logits.shape[1]).to(logits)
        return Trace((View("choice", -ahead[:, None] * right), View("way", logits)))


@dataclass(frozen=True)
class Rerouted(Around):
    """The adversary against the defence on another route: its points of highest value, where it must win on both views."""

    route: Route = Route(0, 0)

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-{self.route}"

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return Peak(self.adversary).move(turn, Forced(defense, self.route, y), x, y)


def routes(defense: Defense, x: Tensor, y: Tensor, ctx: Context) -> tuple[Route, ...]:
    """The ways that change what some image is answered; none where there are too many."""
    with torch.no_grad(), _Choices(len(x)) as made:
        answer = defense.trace(x, ctx).last
    ways = [Route(k, way) for k, scores in enumerate(made.scores) if not _answers(scores, answer) for way in range(scores.shape[1])]
    few = len(made.scores) <= _CHOICES and len(ways) <= _WAYS
    return tuple(route for route in ways if few and _changes(Forced(defense, route, y), answer, x, ctx))


def _answers(scores: Tensor, answer: Tensor) -> bool:
    """Is the choice the answer itself?"""
    return scores.shape == answer.shape and torch.equal(scores.argmax(1), answer.argmax(1))


def _changes(forced: Forced, answer: Tensor, x: Tensor, ctx: Context) -> bool:
    with torch.no_grad():
        return not torch.allclose(forced.trace(x, ctx).last, answer, rtol=1e-4, atol=1e-6)
