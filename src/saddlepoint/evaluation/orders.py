"""The order in which the examples of a stream reach the defense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.phrases import count
from saddlepoint.rng import Keys

# Maps an order [N] to the number of errors that the attacker counts in its simulation of it.
CountErrors = Callable[[Tensor], float]


class Order(Protocol):
    """How the attacker arranges examples before they are split into batches.

    Chen et al. 2022, Sec. 4.
    """

    @property
    def window(self) -> int:
        """Consecutive examples that are rearranged together; 0: the order is not changed."""

    def arrange(self, y: Tensor, count_errors: CountErrors) -> Tensor:
        """The rows, [N], in the order in which they reach the defense.

        Args:
            y: labels, [N].
            count_errors: simulates an order and counts errors.
        """


@dataclass(frozen=True)
class NaturalOrder:
    """The order of the data set."""

    @property
    def window(self) -> int:
        return 0

    def arrange(self, y: Tensor, count_errors: CountErrors) -> Tensor:  # noqa: ARG002
        return torch.arange(len(y), device=y.device)

    def __str__(self) -> str:
        return "natural order"


@dataclass(frozen=True)
class SortedByLabel:
    """Windows sorted by true label and then split into batches.

    The batches are unbalanced, against defenses that expect balanced classes. Chen et al. 2022,
    App. A.7. The clean examples are sorted before they are attacked, as in the released code, so
    that the attacker simulates the batches that are evaluated; the appendix sorts after the attack.

    Args:
        window: consecutive examples that are sorted together.
    """

    window: int = 256

    def __post_init__(self) -> None:
        _require_window(self.window)

    def arrange(self, y: Tensor, count_errors: CountErrors) -> Tensor:  # noqa: ARG002
        if (y < 0).any():
            raise ValueError(
                "sorting by true label needs a label for every example, but "
                f"{int((y < 0).sum())} of {len(y)} have none (below 0). "
                "Remove those examples, or use order=NaturalOrder()."
            )
        windows = torch.split(torch.arange(len(y), device=y.device), self.window)
        return torch.cat([rows[y[rows].argsort(stable=True)] for rows in windows])

    def __str__(self) -> str:
        return f"sorted by label in windows of {self.window}"


@dataclass(frozen=True)
class WorstCaseOrder:
    """The order with most errors that a random search finds.

    The search evaluates the natural order, the order by label, and then `tries` times the best
    order so far with a quarter of its examples shuffled within windows. Each order is simulated on
    points that the adversary found in the natural order. The adversary then attacks again in the
    order with most errors.

    Args:
        window: consecutive examples that are rearranged together.
        tries: shuffled orders.
        seed: seed of the search.
    """

    window: int = 256
    tries: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        _require_window(self.window)
        if self.tries < 0:
            raise ValueError(
                f"a search for the worst order makes at least 0 tries, got tries={self.tries}."
            )

    def arrange(self, y: Tensor, count_errors: CountErrors) -> Tensor:
        best = NaturalOrder().arrange(y, count_errors)
        most = count_errors(best)
        keys = Keys.of(self.seed, best)
        by_label = SortedByLabel(self.window).arrange(y, count_errors)
        for order in (by_label, *(None,) * self.tries):
            keys = keys.fold_in(1)
            candidate = self._shuffled(best, keys) if order is None else order
            errors = count_errors(candidate)
            if errors > most:
                best = candidate
                most = errors
        return best

    def _shuffled(self, order: Tensor, keys: Keys) -> Tensor:
        """The order with about a quarter of the positions of each window permuted."""
        draw, rank = keys.uniform((2,), torch.float64).unbind(1)
        windows = torch.split(torch.arange(len(order), device=order.device), self.window)
        positions = [window[draw[window] < 0.25] for window in windows]
        target = torch.cat(positions)
        source = torch.cat([part[rank[part].argsort()] for part in positions])
        return order.index_copy(0, target, order[source])

    def __str__(self) -> str:
        return f"worst of {count(self.tries + 2, 'order')} in windows of {self.window}"


def _require_window(window: int) -> None:
    if window < 1:
        raise ValueError(
            f"a window needs at least one example, got window={window}. "
            "Use NaturalOrder() to keep the order."
        )
