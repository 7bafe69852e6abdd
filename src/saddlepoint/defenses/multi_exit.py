"""Networks with several exits: which exits an example is answered with, by choice, by chance or by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.defenses.base import Defense
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.trace import Answer, Trace, View

Subset = tuple[int, ...]  # exits, counted from 1, in increasing order: an action of either player

_MOST_EXITS = 12  # 4095 subsets; one exit more doubles the attacks of a full game


def exit_name(number: int) -> str:
    return f"exit/{number}"


def subset_name(subset: Subset) -> str:
    """(1, 3) -> '1+3'."""
    return "+".join(str(number) for number in subset)


def all_subsets(exits: int) -> tuple[Subset, ...]:
    """The 2^L - 1 non-empty sets of exits, the smallest first (Xu et al., Sec. 3.3)."""
    if exits > _MOST_EXITS:
        raise ValueError(
            f"{exits} exits have 2^{exits} - 1 = {2**exits - 1:,} subsets, more than can be played; at most {_MOST_EXITS} exits "
            f"are. Use subsets='intervals' ({exits * (exits + 1) // 2} runs of neighboring exits), and rows='double-oracle' to "
            "attack only those that matter."
        )
    return tuple(
        subset for size in range(1, exits + 1) for subset in combinations(range(1, exits + 1), size)
    )


def intervals(exits: int) -> tuple[Subset, ...]:
    """The L(L + 1)/2 runs of neighboring exits (Xu et al., Fig. 3), the shortest first."""
    return tuple(
        tuple(range(first, first + size))
        for size in range(1, exits + 1)
        for first in range(1, exits - size + 2)
    )


def membership(subsets: Sequence[Subset], exits: int) -> Tensor:
    """[S, L] 1 where the exit belongs to the subset."""
    table = torch.zeros(len(subsets), exits)
    for row, subset in enumerate(subsets):
        refuse_subset(subset, exits)
        table[row, [number - 1 for number in subset]] = 1
    return table


def refuse_subset(subset: Subset, exits: int) -> None:
    if not subset:
        raise ValueError(
            "a subset of exits must not be empty: somebody has to answer. Name at least one exit, counted from 1."
        )
    wrong = [number for number in subset if not 1 <= number <= exits]
    if wrong or list(subset) != sorted(set(subset)):
        raise ValueError(
            f"a subset names exits from 1 to {exits}, each once and in increasing order, got {subset}."
        )


def mean_logits(logits: Tensor, picked: Tensor) -> Tensor:
    """[L, N, C], [N, L] -> [N, C]: the mean over the exits picked for each example."""
    share = picked.to(logits) / picked.sum(1, keepdim=True)
    return torch.einsum("nl,lnc->nc", share, logits)


class Strategy(Protocol):
    """How a network with several exits answers: with the mean logits of the exits picked for each example."""

    @property
    def random(self) -> bool: ...
    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # [L, N, C] -> [N, L] bool
        ...


@dataclass(frozen=True)
class Static:
    """Always the same exits; the last one if none are named."""

    subset: Subset = ()
    random: bool = False

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        exits, n = logits.shape[:2]
        chosen = membership([self.subset or (exits,)], exits).bool()
        return chosen.to(logits.device).expand(n, exits)


@dataclass(frozen=True)
class Mix:
    """A subset drawn for every example: E_j with probability s_j."""

    subsets: tuple[Subset, ...]
    probabilities: tuple[float, ...]
    random: bool = True

    def __post_init__(self) -> None:
        if len(self.subsets) != len(self.probabilities) or not self.subsets:
            raise ValueError(
                f"a mix needs one probability per subset, got {len(self.probabilities)} for {len(self.subsets)}."
            )
        total = sum(self.probabilities)
        if any(not 0 <= p <= 1 for p in self.probabilities) or abs(total - 1) > 1e-6:
            raise ValueError(
                f"the probabilities of a mix must lie between 0 and 1 and sum to one, got a sum of {total:.6g}"
                f" with {sum(not 0 <= p <= 1 for p in self.probabilities)} outside. Divide them by their sum."
            )

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:
        levels = torch.tensor(self.probabilities, dtype=torch.float64).cumsum(0)
        drawn = ctx.rand(1, dtype=torch.float64).to(logits.device)  # [N, 1]
        chosen = (drawn >= levels[:-1].to(logits.device)).sum(1)  # [N]
        return membership(self.subsets, len(logits)).bool().to(logits.device)[chosen]


class MultiExit(Defense):
    """A network whose forward returns a list of logits, one per exit, answering by a strategy.

    Views are `exit/1` ... `exit/L`, the last exit last. What is answered is the mean of the logits of the exits that the strategy
    picks for each example (Xu et al., Sec. 3.1).
    """

    def __init__(self, net: nn.Module, strategy: Strategy | None = None) -> None:
        if not callable(net):
            raise TypeError(
                f"MultiExit needs a module whose forward returns a list of logits, got {type(net).__name__}."
            )
        self.net = net
        self.strategy = strategy or Static()
        self.random = self.strategy.random
        self.static = LastExit(net)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace(
            tuple(
                View(exit_name(k), logits)
                for k, logits in enumerate(checked(self.net(x), len(x)), start=1)
            )
        )

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        logits = trace.logits
        return mean_logits(logits, self.strategy.pick(logits, ctx))

    def exits(self, x: Tensor) -> int:
        """How many exits the network has, by asking it about one input."""
        with torch.no_grad():
            return len(checked(self.net(x[:1]), 1))


class Numbered(Defense):
    """Any defense with several views, which are taken for its exits: the first is `exit/1`."""

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        self.coupled = inner.coupled
        self.random = inner.random
        self.memory = inner.memory
        self.grants = inner.grants
        self.static = inner.static

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Numbered(self.inner.adapt(x, ctx))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = self.inner.trace(x, ctx).views
        return Trace(
            tuple(View(exit_name(k), view.logits) for k, view in enumerate(views, start=1))
        )


class LastExit(nn.Module):
    """The static network under a multi-exit one: its last exit alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return checked(self.net(x), len(x))[-1]


def checked(outputs: object, n: int) -> list[Tensor]:
    """The network's exits, or an error that says what it returned instead."""
    if (
        not isinstance(outputs, list | tuple)
        or not outputs
        or not all(isinstance(z, Tensor) for z in outputs)
    ):
        found = (
            f"a tensor of shape {list(outputs.shape)}"
            if isinstance(outputs, Tensor)
            else f"{type(outputs).__name__}"
        )
        raise TypeError(
            f"a multi-exit network returns a list of logits, one [N, C] tensor per exit; got {found}. "
            "Add exits to an ordinary network with `attach_exits(net, {'layer name': head})`."
        )
    shapes = [tuple(z.shape) for z in outputs]
    if any(len(shape) != 2 or shape[0] != n for shape in shapes) or len(set(shapes)) != 1:
        raise ValueError(
            f"every exit must give logits of one shape [{n}, classes], got {[list(shape) for shape in shapes]}."
        )
    return list(outputs)


def exits_mean(subset: Subset) -> Answer:
    """Answer with the mean logits of these exits: a column of the exit game."""

    def answer(trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(
            logits, membership([subset], len(logits)).expand(logits.shape[1], -1).to(logits.device)
        )

    return answer
