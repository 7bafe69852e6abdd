"""The monotone equilibrium network as a defense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, repeat

from torch import Tensor

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.deq.splitting import (
    Iterate,
    PeacemanRachford,
    Splitting,
    equilibrium,
    iterates,
    settle,
)
from saddlepoint.zoo.nets.monotone import MonotoneNet

_METHOD = PeacemanRachford()


class MonotoneDEQ(Defense):
    """Answers with the equilibrium z = relu(W z + U x + u) of a `MonotoneNet`, found by splitting (Winston & Kolter 2020).

    The last view is "final", at the equilibrium; its gradient, through the site "solve", is that of the implicit function theorem.
    Before it come the solver's first states "solve/1", ..., "solve/{shown}"; theirs is the gradient of the steps that were run. An
    example that has not settled when the method's steps are spent is answered all the same: `settled` says which.
    """

    def __init__(self, net: MonotoneNet, *, method: Splitting = _METHOD, shown: int = 8) -> None:
        if shown < 0:
            raise ValueError(
                f"MonotoneDEQ shows the first `shown` states of its solver, got shown={shown}. Use 0 for none."
            )
        self.net = net
        self.method = method
        self.shown = shown
        self.reads = frozenset({"final"})

    @classmethod
    def from_tensors(
        cls,
        A: Tensor,  # noqa: N803
        B: Tensor,  # noqa: N803
        U: Tensor,  # noqa: N803
        u: Tensor,
        C: Tensor,  # noqa: N803
        c: Tensor,
        *,
        m: float,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        method: Splitting = _METHOD,
        shown: int = 8,
    ) -> MonotoneDEQ:
        """The defense of trained tensors; see `MonotoneNet.from_tensors`."""
        return cls(
            MonotoneNet.from_tensors(A, B, U, u, C, c, m=m, mean=mean, std=std),
            method=method,
            shown=shown,
        )

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        bias = self.net.inject(x)
        weight = self.net.weight
        kept = {n: name for n in range(1, self.shown + 1) if ctx.keeps(name := f"solve/{n}")}
        states = islice(self._states(weight, bias), max(kept, default=0) + 1)
        views = [View(kept[n], self.net.head(state)) for n, state in enumerate(states) if n in kept]
        final = ctx.through("solve", partial(equilibrium, self.method, weight), bias)
        return Trace((*views, View("final", self.net.head(final))))

    def settled(self, x: Tensor) -> Iterate:
        """The equilibrium that is answered with, and per example its relative residual and the steps it took."""
        return settle(self.method, self.net.weight, self.net.inject(x).detach())

    def _states(self, weight: Tensor, bias: Tensor) -> Iterator[Tensor]:
        """Without end: when all rows have settled, the last state is repeated."""
        last = bias
        for here in iterates(self.method, weight, bias):
            last = here.state
            yield last
        yield from repeat(last)
