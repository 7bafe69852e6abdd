"""Numbered: views of any defense as exits."""

from __future__ import annotations

import torch
from tests.problems import Exits, smooth, uniform
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Numbered, Trace, View, innermost

X = uniform(0, 5, 6)
NETS = tuple(smooth(seed) for seed in range(3))


class PerRow(Defense):
    """Adapts one shift per row."""

    memory = "batch"
    rejects = True
    reads = frozenset({"shifted"})

    def __init__(self, shift: Tensor | None = None) -> None:
        self.shift = shift

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return PerRow(x.sum(1))

    def restrict(self, rows: Tensor) -> Defense:
        assert self.shift is not None
        return PerRow(self.shift[rows])

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        assert self.shift is not None
        return Trace((View("plain", x), View("shifted", x + self.shift[:, None])))


def test_views_are_renamed_in_order_and_the_answer_is_the_last_view() -> None:
    defense = Numbered(Exits(NETS))
    ctx = Context.seeded(0, 5)
    trace = defense.trace(X, ctx)
    assert trace.names == ("exit/1", "exit/2", "exit/3")
    assert torch.equal(defense.answer(trace, ctx), NETS[2](X))


def test_declarations_are_those_of_the_inner_defense_except_the_names_of_views() -> None:
    inner = PerRow()
    defense = Numbered(inner)
    assert (defense.memory, defense.rejects, defense.unit) == ("batch", True, "batch")
    assert defense.reads is None
    assert innermost(defense) is inner


def test_adapted_and_restricted_defenses_are_wrapped_again() -> None:
    adapted = Numbered(PerRow()).adapt(X, Context.seeded(0, 5))
    rows = torch.tensor([3, 1])
    restricted = adapted.restrict(rows)
    assert isinstance(adapted, Numbered)
    assert isinstance(restricted, Numbered)
    trace = restricted.trace(X[rows], Context.seeded(0, 2))
    assert trace.names == ("exit/1", "exit/2")
    assert torch.equal(trace.last, X[rows] + X[rows].sum(1, keepdim=True))
