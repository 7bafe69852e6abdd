"""A deployed defense that learns from whoever asks."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace


class OnlineDefense(DefenseWrapper):
    """The defense itself instead of a copy of it: every query is answered as a batch of the stream and leaves its mark.

    The one object of a game that changes. `state` is what the defense has become. Coins are its own at every query: no attacker can
    make it toss the same ones again.
    """

    def __init__(self, state: Defense) -> None:
        super().__init__(state)
        self.state = state
        self.asked = 0
        self.coupled = state.unit != "example"  # a query is adapted to as a whole

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        self.asked += 1
        own = Context(ctx.keys.fold_in(self.asked), keep=ctx.keep)
        adapted = self.state.adapt(x, own)
        trace = adapted.trace(x, own)
        self._answering = adapted
        if self.memory == "stream":
            self.state = adapted
        return trace

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self._answering.answer(trace, ctx)
