"""Single rows of a batch whose rows influence each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.defenses.base import Defense
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.trace import Trace, View
from saddlepoint.defenses.wrapper import DefenseWrapper
from saddlepoint.rng import Keys


def decoupled(defense: Defense, x: Tensor) -> Defense:
    """The defense for single rows of a batch, while the others keep their points.

    Its outputs at `x` are those of the defense. It is what `Defense.decouple` returns, where rows
    are independent. Where that is None, the rows of a call are evaluated together with all others,
    so that they still influence each other. Attacks compare points row by row in both cases; the
    batch of their final points has to be evaluated again.

    Args:
        defense: a deterministic defense that does not adapt.
        x: the batch, [N, ...].
    """
    fixed = defense.decouple(x)
    return AmongBatch(defense, x) if fixed is None else fixed


class AmongBatch(DefenseWrapper):
    """Some rows of a batch, evaluated together with all others, which keep their points.

    `coupled` is False, so that attacks compare points row by row.

    Args:
        inner: the defense.
        batch: the points of all rows, [N, ...].
        rows: the rows that a call has, [M], each once; None: all.
    """

    def __init__(self, inner: Defense, batch: Tensor, rows: Tensor | None = None) -> None:
        super().__init__(inner)
        self.coupled = False
        self.batch = batch
        self.rows = torch.arange(len(batch), device=batch.device) if rows is None else rows

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return AmongBatch(inner, self.batch, self.rows if rows is None else self.rows[rows])

    def restrict(self, rows: Tensor) -> Defense:
        # The inner defense keeps all rows.
        return self.rewrap(self.inner, rows)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        context = self._context(ctx)
        whole = self.inner.trace(self.batch.index_copy(0, self.rows, x), context)
        ctx.expect(context.known_sites)
        views = tuple(View(view.name, view.logits[self.rows]) for view in whole.views)
        return _PartOfTrace(views, whole)

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        if not isinstance(trace, _PartOfTrace):
            return self.inner.answer(trace, ctx)
        return self.inner.answer(trace.whole, self._context(ctx))[self.rows]

    def _context(self, ctx: Context) -> Context:
        """A context for all rows. A deterministic defense draws nothing from its keys."""
        numbers = torch.arange(len(self.batch), device=self.batch.device)
        return Context(Keys.of(0, numbers), ctx.rules, ctx.keep)


@dataclass(frozen=True)
class _PartOfTrace(Trace):
    """Views of some rows, with the trace of the whole batch: an answer may need all rows."""

    whole: Trace
