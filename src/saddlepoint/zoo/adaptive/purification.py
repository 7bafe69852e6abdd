"""Input purification: a defense moves the input in several steps before it is classified.

Every step passes through a named site, so an attacker can differentiate it or replace its
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.validation import require_eval_mode

Step = Callable[[int, Tensor], Tensor]  # (step number t, x_t [N, ...]) -> x_{t+1} [N, ...]
State = TypeVar("State")


class Purifier(Defense):
    """Base class of defenses that purify the input of a static network.

    x_0 = x and x_{t+1} = step(t, x_t), where each step passes through the site `purify`. The view
    `purify/t` holds the logits at x_t: `purify/0` is the undefended network, `purify/steps` the
    final output. A random start is part of the first step. With steps=0 the defense equals the
    network.

    Args:
        net: Classifier [N, ...] -> [N, C] in eval mode.
        steps: Number of purification steps, >= 0.

    Raises:
        ValueError: If `steps` is negative or the network is in training mode.
    """

    def __init__(self, net: nn.Module, steps: int) -> None:
        if steps < 0:
            raise ValueError(f"{type(self).__name__} needs steps >= 0, got steps={steps}.")
        require_eval_mode(net, role="network", owner=type(self).__name__)
        self.net = net
        self.steps = steps
        self.static = net

    def classify_iterates(self, step: Step, x: Tensor, ctx: Context) -> Trace:
        """Purify x by `steps` calls of `step` and classify the iterates."""
        return purification_trace(iterates(step, x, self.steps, ctx), self.net, self.steps, ctx)


def iterates(step: Step, x: Tensor, steps: int, ctx: Context) -> Iterator[Tensor]:
    """Yield x, then x_{t+1} = step(t, x_t); each step passes through the site `purify`."""
    yield x
    for t in range(steps):
        x = ctx.through("purify", partial(step, t), x)
        yield x


def purification_trace(
    states: Iterable[State], classify: Callable[[State], Tensor], steps: int, ctx: Context
) -> Trace:
    """Build a trace with one view `purify/t` per state.

    Args:
        states: States of the purification, from t = 0 to t = `steps`.
        classify: Function from a state to logits [N, C].
        steps: Number of the last state.
        ctx: Context of the call. Views that it does not keep are skipped, except the last one.
    """
    views = []
    for t, state in enumerate(states):
        name = f"purify/{t}"
        if t == steps or ctx.keeps(name):
            views.append(View(name, classify(state)))
    return Trace(tuple(views))
