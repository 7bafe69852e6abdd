"""Multi-exit networks: the final output is the mean logits of exits that a strategy selects.

The selection may be fixed, random or depend on confidence.
"""

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
from saddlepoint.phrases import count

Subset = tuple[int, ...]  # exits, counted from 1, in increasing order: an action of either player

_MAX_EXITS = 12  # 4095 subsets; one more exit doubles the number of attacks in a full game


def exit_name(number: int) -> str:
    """The name of the view of an exit, counted from 1: "exit/2"."""
    return f"exit/{number}"


def subset_name(subset: Subset) -> str:
    """A short name of a subset: (1, 3) -> '1+3'."""
    return "+".join(str(number) for number in subset)


def all_subsets(exits: int) -> tuple[Subset, ...]:
    """The 2^L - 1 non-empty sets of L exits, the smallest first (Xu et al., Sec. 3.3).

    Raises:
        ValueError: there are more than 12 exits.
    """
    if exits > _MAX_EXITS:
        raise ValueError(
            f"{count(exits, 'exit')} have 2^{exits} - 1 = {count(2**exits - 1, 'subset')}, more "
            f"than can be played; the limit is {count(_MAX_EXITS, 'exit')}. Use "
            f"subsets='intervals' ({count(exits * (exits + 1) // 2, 'run')} of neighboring exits), "
            "and rows='double-oracle' to attack only those that matter."
        )
    return tuple(
        subset for size in range(1, exits + 1) for subset in combinations(range(1, exits + 1), size)
    )


def intervals(exits: int) -> tuple[Subset, ...]:
    """The L(L + 1)/2 runs of neighboring exits, the shortest first (Xu et al., Fig. 3)."""
    return tuple(
        tuple(range(first, first + size))
        for size in range(1, exits + 1)
        for first in range(1, exits - size + 2)
    )


def membership(subsets: Sequence[Subset], exits: int) -> Tensor:
    """[S, L] indicator matrix: 1 where exit l belongs to subset s."""
    table = torch.zeros(len(subsets), exits)
    for row, subset in enumerate(subsets):
        check_subset(subset, exits)
        table[row, [number - 1 for number in subset]] = 1
    return table


def check_subset(subset: Subset, exits: int) -> None:
    """Check a subset of `exits` exits.

    Raises:
        ValueError: it is empty, names an exit that does not exist, or is not in increasing order.
    """
    if not subset:
        raise ValueError(
            "a subset of exits must not be empty. Name at least one exit, counted from 1."
        )
    wrong = [number for number in subset if not 1 <= number <= exits]
    if wrong or list(subset) != sorted(set(subset)):
        raise ValueError(
            f"a subset names exits from 1 to {exits}, each once and in increasing order, "
            f"got {subset}."
        )


def mean_logits(logits: Tensor, picked: Tensor) -> Tensor:
    """The mean logits of the selected exits of each example.

    Args:
        logits: logits of all exits, [L, N, C].
        picked: selected exits, [N, L] bool or 0 and 1.

    Returns:
        [N, C].
    """
    share = picked.to(logits) / picked.sum(1, keepdim=True)
    return torch.einsum("nl,lnc->nc", share, logits)


class Strategy(Protocol):
    """Selects the exits of a multi-exit network for each example."""

    @property
    def random(self) -> bool:
        """Whether the selection depends on the random keys of the context."""
        ...

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:
        """The selected exits, [N, L] bool, given the logits of all exits, [L, N, C]."""
        ...


@dataclass(frozen=True)
class Static:
    """The same exits for every example.

    Args:
        subset: the exits, counted from 1; default the last one.
        random: the selection is deterministic; leave it False.
    """

    subset: Subset = ()
    random: bool = False

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        exits, n = logits.shape[:2]
        chosen = membership([self.subset or (exits,)], exits).bool()
        return chosen.to(logits.device).expand(n, exits)


@dataclass(frozen=True)
class Mix:
    """A subset drawn independently for every example.

    Args:
        subsets: the subsets E_j, at least one.
        probabilities: the probability s_j of each subset; they sum to one up to 1e-6.
        random: the selection is random; leave it True.

    Raises:
        ValueError: the probabilities do not fit the subsets or are no distribution.
    """

    subsets: tuple[Subset, ...]
    probabilities: tuple[float, ...]
    random: bool = True

    def __post_init__(self) -> None:
        if len(self.subsets) != len(self.probabilities) or not self.subsets:
            raise ValueError(
                "a mix needs one probability per subset, "
                f"got {len(self.probabilities)} for {len(self.subsets)}."
            )
        total = sum(self.probabilities)
        if any(not 0 <= p <= 1 for p in self.probabilities) or abs(total - 1) > 1e-6:
            raise ValueError(
                "the probabilities of a mix must lie between 0 and 1 and sum to one, "
                f"got a sum of {total:.6g} with {sum(not 0 <= p <= 1 for p in self.probabilities)} "
                "outside. Divide them by their sum."
            )

    def pick(self, logits: Tensor, ctx: Context) -> Tensor:
        levels = torch.tensor(self.probabilities, dtype=torch.float64).cumsum(0)
        drawn = ctx.rand(1, dtype=torch.float64).to(logits.device)  # [N, 1]
        chosen = (drawn >= levels[:-1].to(logits.device)).sum(1)  # [N]
        return membership(self.subsets, len(logits)).bool().to(logits.device)[chosen]


class MultiExit(Defense):
    """A multi-exit network with a strategy that selects exits.

    Its views are `exit/1` ... `exit/L`, the last exit last. Its final output is the mean logits of
    the exits that the strategy selects for each example (Xu et al., Sec. 3.1).

    Args:
        net: a module that returns a list of logits, one tensor [N, C] per exit.
        strategy: the selection; default `Static()`, the last exit.

    Raises:
        TypeError: `net` is not callable.
    """

    def __init__(self, net: nn.Module, strategy: Strategy | None = None) -> None:
        if not callable(net):
            raise TypeError(
                f"MultiExit needs a module that returns a list of logits, got {type(net).__name__}."
            )
        if strategy is not None and not hasattr(strategy, "pick"):
            raise TypeError(
                "MultiExit needs a strategy that selects an exit, such as "
                "saddlepoint.defenses.gates.Confident((0.9, 0.9)) for three exits, got "
                f"{strategy!r}."
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
        """The number of exits, found by running the network on the first row of x, [N, ...]."""
        with torch.no_grad():
            return len(checked(self.net(x[:1]), 1))


class LastExit(nn.Module):
    """The last exit of a multi-exit network, as an ordinary module from [N, ...] to [N, C]."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return checked(self.net(x), len(x))[-1]


def checked(outputs: object, n: int) -> list[Tensor]:
    """Check that a network returned logits of several exits.

    Args:
        outputs: what the network returned.
        n: number of examples.

    Returns:
        The logits of the exits, each [n, C].

    Raises:
        TypeError: it is not a list of tensors.
        ValueError: the tensors have different shapes, or not the shape [n, C].
    """
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
            "a multi-exit network returns a list of logits, one [N, C] tensor per exit; "
            f"got {found}. Add exits to an ordinary network with "
            "`attach_exits(net, {'layer name': head})`."
        )
    shapes = [tuple(z.shape) for z in outputs]
    if any(len(shape) != 2 or shape[0] != n for shape in shapes) or len(set(shapes)) != 1:
        raise ValueError(
            f"every exit must give logits of one shape [{n}, classes], "
            f"got {[list(shape) for shape in shapes]}."
        )
    return list(outputs)


def exits_mean(subset: Subset) -> Answer:
    """An `Answer` that returns the mean logits of these exits: a column of the exit game."""

    def answer(trace: Trace) -> Tensor:
        logits = trace.logits
        return mean_logits(
            logits, membership([subset], len(logits)).expand(logits.shape[1], -1).to(logits.device)
        )

    return answer
