"""Defenses as exit games and attacks on exits see them: with views `exit/1`, `exit/2`, ..."""

from __future__ import annotations

from copy import copy

from torch import Tensor

from saddlepoint.defenses import (
    Context,
    Defense,
    DefenseWrapper,
    MultiExit,
    Strategy,
    Subset,
    Trace,
    View,
    check_subset,
    exit_name,
    innermost,
)

ANSWER_VIEW = "answer"  # the view of `MeanOfExits` with the mean logits


class NumberedExits(DefenseWrapper):
    """Any defense with several views, which are its exits: the first view is `exit/1`.

    It answers with its last exit. `reads` differs from the inner defense: it is None, because the
    views have other names.
    """

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.reads = None

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        # The number of an exit is its position among all views, so all have to be computed.
        views = self.inner.trace(x, _keeping(ctx, None)).views
        return Trace(tuple(View(exit_name(k), view.logits) for k, view in enumerate(views, 1)))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


class MeanOfExits(DefenseWrapper):
    """A defense that answers with the mean logits of some exits, in its last view `answer`.

    The views of the `latent` exits come first. `random` differs from the inner defense: a strategy
    that draws exits has no effect here. `reads` is None, because the views have other names.
    """

    def __init__(self, inner: Defense, subset: Subset, latent: Subset = ()) -> None:
        super().__init__(inner)
        base = innermost(inner)
        drawn_exits = isinstance(base, MultiExit) and base.strategy.random
        self.random = inner.random and not drawn_exits
        self.reads = None
        self.subset = subset
        self.latent = latent

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:  # noqa: ARG002
        return MeanOfExits(inner, self.subset, self.latent)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        used = exit_views(tuple(sorted({*self.subset, *self.latent})))
        exits = self.inner.trace(x, _keeping(ctx, used))
        latent = exits.select(exit_views(self.latent)).views if self.latent else ()
        mean = exits.select(exit_views(self.subset)).logits.mean(0)
        return Trace((*latent, View(ANSWER_VIEW, mean)))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


def has_exits(defense: Defense) -> bool:
    """Whether the views of a defense are numbered exits, inside any wrappers."""
    while isinstance(defense, DefenseWrapper) and not isinstance(defense, NumberedExits):
        defense = defense.inner
    return isinstance(defense, MultiExit | NumberedExits)


def exit_views(subset: Subset) -> frozenset[str]:
    """The names of the views of these exits."""
    check_subset(subset, max(subset, default=0))
    return frozenset(exit_name(number) for number in subset)


def with_strategy(defense: MultiExit, strategy: Strategy) -> MultiExit:
    """The same multi-exit defense with another strategy; everything else stays."""
    other = copy(defense)
    other.strategy = strategy
    random_network = defense.random and not defense.strategy.random
    other.random = random_network or strategy.random
    return other


def _keeping(ctx: Context, keep: frozenset[str] | None) -> Context:
    """The same context for other views.

    It shares sites, random draws and statistics with `ctx`, which `dataclasses.replace` would
    reset.
    """
    other = copy(ctx)
    object.__setattr__(other, "keep", keep)
    return other
