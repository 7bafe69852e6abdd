"""A deployed defense that adapts to every query."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace


class OnlineDefense(DefenseWrapper):
    """The deployed defense itself instead of a copy: every query is a batch of its stream.

    This is the only mutable object of an evaluation: `state` is the adapted defense after the
    queries so far. `adapt` and `restrict` return this same object, so that all queries reach the
    deployed defense. `coupled` differs from the inner defense: one that adapts does so to a query
    as a whole. Every query uses new random keys, which the attacker cannot choose or repeat.
    """

    def __init__(self, state: Defense) -> None:
        super().__init__(state)
        self.state = state
        self.queries = 0
        self.coupled = state.unit != "example"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        return self

    def restrict(self, rows: Tensor) -> Defense:  # noqa: ARG002
        return self

    def decouple(self, x: Tensor) -> Defense | None:  # noqa: ARG002
        return None

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        self.queries += 1
        own = Context(ctx.keys.fold_in(self.queries), keep=ctx.keep)
        adapted = self.state.adapt(x, own)
        trace = adapted.trace(x, own)
        self._answering = adapted
        if self.memory == "stream":
            self.state = adapted
        return trace

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self._answering.answer(trace, ctx)
