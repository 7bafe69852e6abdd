"""In which order a stream of examples reaches the defender: as it comes, or as the attacker would have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.rng import Keys

Harm = Callable[
    [Tensor], float
]  # an order [N] -> answers that go wrong when the attacker rehearses it


class Order(Protocol):
    """How the attacker arranges what it has pooled before batches are made of it (Chen et al. 2022, Sec. 4)."""

    @property
    def window(self) -> int: ...  # examples that are pooled and arranged together; 0: none are
    def arrange(
        self, y: Tensor, harm: Harm
    ) -> Tensor: ...  # [N] rows in the order in which they are sent


@dataclass(frozen=True)
class NaturalOrder:
    """As the examples come."""

    @property
    def window(self) -> int:
        return 0

    def arrange(self, y: Tensor, harm: Harm) -> Tensor:  # noqa: ARG002
        return torch.arange(len(y), device=y.device)

    def __str__(self) -> str:
        return "natural order"


@dataclass(frozen=True)
class SortedByLabel:
    """Windows sorted by true label, then cut into batches: the order that unbalances a defense which expects balanced classes.

    Chen et al. 2022, App. A.7. The clean examples are sorted and then attacked, as the released code does, so that the attacker
    simulates the batches that will be answered; the appendix sorts after the attack.
    """

    window: int = 256

    def __post_init__(self) -> None:
        _refuse_window(self.window)

    def arrange(self, y: Tensor, harm: Harm) -> Tensor:  # noqa: ARG002
        if (y < 0).any():
            raise ValueError(
                f"sorting by true label needs a label for every example, but {int((y < 0).sum())} of {len(y)} have none (below 0). "
                "Leave those examples out, or use order=Natural()."
            )
        windows = torch.split(torch.arange(len(y), device=y.device), self.window)
        return torch.cat([rows[y[rows].argsort(stable=True)] for rows in windows])

    def __str__(self) -> str:
        return f"sorted by label in windows of {self.window}"


@dataclass(frozen=True)
class WorstCaseOrder:
    """The worst order that a search finds: natural, by label, then `tries` times a quarter of the best one shuffled within windows.

    Each order is judged by a rehearsal on points that the adversary found in the natural order; in the order that went worst it
    attacks again.
    """

    window: int = 256
    tries: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _refuse_window(self.window)
        if self.tries < 0:
            raise ValueError(
                f"a search for the worst order makes at least 0 tries, got tries={self.tries}."
            )

    def arrange(self, y: Tensor, harm: Harm) -> Tensor:
        best = NaturalOrder().arrange(y, harm)
        worst = harm(best)
        keys = Keys.of(self.seed, best)
        for order in (SortedByLabel(self.window).arrange(y, harm), *(None,) * self.tries):
            keys = keys.fold_in(1)
            tried = self._shuffled(best, keys) if order is None else order
            if (found := harm(tried)) > worst:
                best = tried
                worst = found
        return best

    def _shuffled(self, order: Tensor, keys: Keys) -> Tensor:
        lot, rank = keys.uniform((2,), torch.float64).unbind(1)
        places = [
            part[lot[part] < 0.25]
            for part in torch.split(torch.arange(len(order), device=order.device), self.window)
        ]
        into = torch.cat(places)
        out_of = torch.cat([place[rank[place].argsort()] for place in places])
        return order.index_copy(0, into, order[out_of])

    def __str__(self) -> str:
        return f"worst of {self.tries + 2} orders in windows of {self.window}"


def _refuse_window(window: int) -> None:
    if window < 1:
        raise ValueError(
            f"a window of examples to arrange holds at least one, got window={window}. Use Natural() for none."
        )
