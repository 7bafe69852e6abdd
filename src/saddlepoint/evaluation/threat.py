"""Who may do what: printed beside every number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.describe import OMIT_DEFAULT
from saddlepoint.evaluation.batch_control import BatchControl
from saddlepoint.evaluation.orders import NaturalOrder, Order, WorstCaseOrder


@dataclass(frozen=True)
class Threat:
    """The perturbation set, what the attacker may ask and how often, whose coins are known, and how a stream is played.

    The last five matter to defenses that learn at test time (Chen et al. 2022, Sec. 4).
    """

    space: Ball
    access: Access = "gradient"
    queries: int | None = None  # forward passes per example and adversary; None: unlimited
    # public: the attacker simulates with the coins that the defender will use. fixed: the defender tosses once, and the same for
    # every example and answer, so that its coins are a part of the defense and known like all of it.
    randomness: Literal["private", "public", "fixed"] = "private"
    draws: int = 1  # answers over which a random defense is judged
    rounds: Literal["many", "one"] = field(
        default="many", metadata=OMIT_DEFAULT
    )  # one: the whole stream is a single batch
    # Is it seen what an online defense has become, or only simulated? Seen, unless told otherwise: robustness should not rest on a
    # secret. Chen et al. evaluate with a hidden state (Sec. 5), and so do the experiments of their paper here.
    state_visible: bool = field(default=True, metadata=OMIT_DEFAULT)
    order: Order = field(
        default=NaturalOrder(), metadata=OMIT_DEFAULT
    )  # in which the stream is sent
    batch_control: BatchControl = field(
        default=BatchControl(), metadata=OMIT_DEFAULT
    )  # which rows of a batch are the attacker's
    online_queries: bool = field(
        default=False, metadata=OMIT_DEFAULT
    )  # is the online defense itself asked, which learns from every query?

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"a defense is judged over at least one draw, got draws={self.draws}.")
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"the query budget must be at least 1 or None, got {self.queries}.")
        if self.rounds == "one" and self.order.window:
            raise ValueError(
                f"in one round the whole stream is one batch, so its order means nothing: {self.order} needs rounds='many'."
            )
        if self.online_queries and self.access == "gradient":
            raise ValueError(
                "live queries are answered by the deployed defense, which shows no gradients: use access='score' or 'decision'."
            )
        if self.queries is not None and isinstance(self.order, WorstCaseOrder):
            raise ValueError(
                "a search for the worst order rehearses whole streams, which no budget per example counts: use queries=None."
            )

    @property
    def randomness_known(self) -> bool:
        """Does the attacker know the defender's coins?"""
        return self.randomness != "private"

    def examples_per_cell(self, examples: int, batch_size: int) -> int:
        """Consecutive examples that stand in one game because their batches are made of each other's rows."""
        if self.rounds == "one":
            return examples
        return batch_size * max(math.ceil(self.order.window / batch_size), 1)

    def __str__(self) -> str:
        queries = (
            "unlimited queries" if self.queries is None else f"{self.queries} queries per example"
        )
        draws = "one draw" if self.draws == 1 else f"{self.draws} draws"
        stream = [
            "one round" if self.rounds == "one" else "",
            "" if self.state_visible else "hidden state",
            str(self.order) if self.order.window else "",
            str(self.batch_control) if self.batch_control.share < 1 else "",
            "live queries" if self.online_queries else "",
        ]
        plain = f"{self.space}, {self.access} access, {queries}, {self.randomness} coins, judged over {draws}"
        return ", ".join([plain, *(text for text in stream if text)])
