"""The base class of defenses that wrap another defense."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from saddlepoint.defenses.base import Defense
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.trace import Trace


class DefenseWrapper(Defense):
    """A defense around another one: everything is forwarded unless a subclass overrides it.

    All declarations of `Defense` are copied from the inner defense. `adapt`, `restrict` and
    `decouple` wrap their results again with `rewrap`.

    Args:
        inner: the wrapped defense.
    """

    replaces_views: ClassVar[bool] = False  # its views are its own; its answer is the last one

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        for declaration in Defense.__annotations__:
            setattr(self, declaration, getattr(inner, declaration))

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:  # noqa: ARG002
        """This wrapper around another inner defense.

        Args:
            inner: the adapted, restricted or decoupled inner defense.
            rows: the rows kept by `restrict`, [M]; None otherwise. Wrappers with values per row
                select them here.
        """
        return type(self)(inner)

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return self.rewrap(self.inner.adapt(x, ctx))

    def restrict(self, rows: Tensor) -> Defense:
        return self.rewrap(self.inner.restrict(rows), rows)

    def decouple(self, x: Tensor) -> Defense | None:
        fixed = self.inner.decouple(x)
        return None if fixed is None else self.rewrap(fixed)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return self.inner.trace(x, ctx)

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self.inner.answer(trace, ctx)


def innermost(defense: Defense) -> Defense:
    """The defense inside all wrappers."""
    while isinstance(defense, DefenseWrapper):
        defense = defense.inner
    return defense
