"""Who may do what: printed beside every number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saddlepoint.attack.space import Ball
from saddlepoint.defense import Access


@dataclass(frozen=True)
class Threat:
    """The perturbation set, what the attacker may ask and how often, and whose coins are known."""

    space: Ball
    access: Access = "gradient"
    queries: int | None = None  # forward passes per example and adversary; None: unlimited
    coins: Literal["private", "public"] = "private"  # public: the attacker simulates with the coins the defender will use
    draws: int = 1  # answers over which a random defence is judged

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"a defence is judged over at least one draw, got draws={self.draws}.")
        if self.queries is not None and self.queries < 1:
            raise ValueError(f"the query budget must be at least 1 or None, got {self.queries}.")

    def __str__(self) -> str:
        queries = "unlimited queries" if self.queries is None else f"{self.queries} queries per example"
        draws = "one draw" if self.draws == 1 else f"{self.draws} draws"
        return f"{self.space}, {self.access} access, {queries}, {self.coins} coins, judged over {draws}"
