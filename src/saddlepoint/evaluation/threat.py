"""The threat model: what the attacker may do and what it knows. It is printed with every result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.describe import OMIT_DEFAULT
from saddlepoint.evaluation.batch_control import BatchControl
from saddlepoint.evaluation.corruption import Corruption
from saddlepoint.evaluation.masks import Mask
from saddlepoint.evaluation.orders import NaturalOrder, Order, WorstCaseOrder
from saddlepoint.phrases import count


@dataclass(frozen=True)
class Threat:
    """The perturbation set, the attacker's access and knowledge, and how a stream is evaluated.

    The fields from `rounds` to `online_queries` matter for defenses that adapt at test time (Chen
    et al. 2022, Sec. 4).

    Args:
        space: the perturbation set.
        access: what the attacker can query: decisions, scores, or scores and gradients.
        queries: forward passes per example and adversary; None: unlimited.
        randomness: what the attacker knows about the random keys of the defender. "private":
            nothing. "public": it simulates the defense with the keys of the evaluation. "fixed":
            the keys are drawn once, are the same for all examples and outputs, and are known, as
            if they were part of the model.
        draws: random draws over which a randomized defense is evaluated.
        rounds: "many": the stream is split into batches; "one": the whole stream is one batch.
        state_visible: whether the attacker sees the state to which an online defense has adapted.
            If not, it simulates the state. True by default, because robustness should not depend
            on a secret. Chen et al. hide the state (Sec. 5), and so do the experiments here that
            reproduce their paper.
        order: the order in which the stream reaches the defense.
        batch_control: the rows of each batch that the attacker controls.
        online_queries: whether queries reach the deployed online defense, which adapts to each.
        target_class: the attacker succeeds if an image becomes this class; None: any wrong class.
            Accuracy is then the share of images that do not become it. Images of this class are
            left out.
        mask: the pixels that the attacker may change; None: all.
        corruption: applied to the images before any attack; None: none. With radius 0 it is
            evaluated alone.
    """

    space: Ball
    access: Access = "gradient"
    queries: int | None = None
    randomness: Literal["private", "public", "fixed"] = "private"
    draws: int = 1
    rounds: Literal["many", "one"] = field(default="many", metadata=OMIT_DEFAULT)
    state_visible: bool = field(default=True, metadata=OMIT_DEFAULT)
    order: Order = field(default=NaturalOrder(), metadata=OMIT_DEFAULT)
    batch_control: BatchControl = field(default=BatchControl(), metadata=OMIT_DEFAULT)
    online_queries: bool = field(default=False, metadata=OMIT_DEFAULT)
    target_class: int | None = field(default=None, metadata=OMIT_DEFAULT)
    mask: Mask | None = field(default=None, metadata=OMIT_DEFAULT)
    corruption: Corruption | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(
                f"a defense is evaluated over at least one draw, got draws={self.draws}."
            )
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"the query budget must be at least 1 or None, got {self.queries}.")
        if self.rounds == "one" and self.order.window:
            raise ValueError(
                "with rounds='one' the whole stream is one batch, so its order has no effect: "
                f"{self.order} needs rounds='many'."
            )
        if self.online_queries and self.access == "gradient":
            raise ValueError(
                "online queries reach the deployed defense, which gives no gradients: "
                "use access='score' or access='decision'."
            )
        if self.target_class is not None and self.target_class < 0:
            raise ValueError(f"the target class is a class number, got {self.target_class}.")
        if self.queries is not None and isinstance(self.order, WorstCaseOrder):
            raise ValueError(
                "a search for the worst order simulates whole streams, which a query budget per "
                "example does not count: use queries=None."
            )

    def images(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The images that are evaluated, and their labels: corrupted, without the target class.

        Args:
            x: clean images, [N, ...].
            y: labels, [N].

        Raises:
            ValueError: all images are of the target class.
        """
        if self.corruption is not None:
            x = self.corruption.apply(x)
        if self.target_class is not None:
            rows = y != self.target_class
            if not rows.any():
                raise ValueError(f"all images are of the target class {self.target_class}.")
            x = x[rows]
            y = y[rows]
        return x, y

    @property
    def randomness_known(self) -> bool:
        """Whether the attacker knows the random keys of the defender."""
        return self.randomness != "private"

    def examples_per_cell(self, examples: int, batch_size: int) -> int:
        """Consecutive examples that are evaluated together because their batches share rows.

        Args:
            examples: number of examples.
            batch_size: examples per batch.
        """
        if self.rounds == "one":
            return examples
        return batch_size * max(math.ceil(self.order.window / batch_size), 1)

    def __str__(self) -> str:
        queries = "unlimited queries"
        if self.queries is not None:
            queries = f"{count(self.queries, 'query')} per example"
        parts = [
            str(self.space),
            f"{self.access} access",
            queries,
            f"{self.randomness} randomness",
            f"evaluated over {'one draw' if self.draws == 1 else count(self.draws, 'draw')}",
            "one round" if self.rounds == "one" else "",
            "" if self.state_visible else "hidden state",
            str(self.order) if self.order.window else "",
            str(self.batch_control) if self.batch_control.share < 1 else "",
            "online queries" if self.online_queries else "",
            "" if self.target_class is None else f"goal: class {self.target_class}",
            "" if self.mask is None else str(self.mask),
            "" if self.corruption is None else f"images with {self.corruption}",
        ]
        return ", ".join(part for part in parts if part)
