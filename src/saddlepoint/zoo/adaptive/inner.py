"""Optimization of an input inside a defense, such that an attacker may differentiate it or replace its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.descent import Objective, slope

Direction = Callable[[Tensor], Tensor]  # a gradient [N, ...] -> where to go, of the same shape
State = TypeVar("State")


class Purifier(Defense):
    """A static net whose input is moved by `steps` steps before it answers.

    x_0 = x, x_{t+1} = step(x_t) at the site `purify`; the views are `purify/0`, what the net itself answers, to `purify/steps`. A
    random start belongs to the first step. Without steps this is the net.
    """

    def __init__(self, net: nn.Module, steps: int) -> None:
        if steps < 0:
            raise ValueError(f"{type(self).__name__} needs steps >= 0, got steps={steps}.")
        if net.training:
            raise ValueError(
                f"{type(self).__name__} was given a net in training mode, where batch statistics and dropout change its answers. "
                "Call net.eval() first."
            )
        self.net = net
        self.steps = steps
        self.static = net


def walk(
    step: Callable[[int, Tensor], Tensor], x: Tensor, steps: int, ctx: Context
) -> Iterator[Tensor]:
    """x itself, then x_{t+1} = step(t, x_t), each step through the site `purify`."""
    yield x
    for t in range(steps):
        x = ctx.through("purify", partial(step, t), x)
        yield x


def shown(
    states: Iterable[State], answer: Callable[[State], Tensor], steps: int, ctx: Context
) -> Trace:
    """A view `purify/t` of every state that somebody will read, and of the last one."""
    named = ((f"purify/{t}", t, state) for t, state in enumerate(states))
    return Trace(
        tuple(
            View(name, answer(state)) for name, t, state in named if t == steps or ctx.keeps(name)
        )
    )


@dataclass(frozen=True)
class Ascent:
    """x <- project(x + step d(grad_x objective(x))), with d the sign unless said otherwise.

    The sign's derivative is zero wherever it has one, so no second derivatives are taken for it; through any other direction the
    attacker's gradient flows.
    """

    step_size: float  # in units of the input
    space: Ball | None = None  # around the point where x started; None: x may go anywhere
    direction: Direction = torch.sign

    def __call__(
        self, objective: Objective, x: Tensor, start: Tensor, radius: Tensor | None = None
    ) -> Tensor:
        """One step; `radius` [N] gives every row a set of its own."""
        grad = slope(objective, x, recorded=self.direction is not torch.sign)
        moved = x + self.step_size * self.direction(grad)
        return moved if self.space is None else self.space.project(moved, start, radius)
