"""What an attack is: an optimiser over an oracle and a space."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from saddlepoint.attack.best import Found
from saddlepoint.attack.space import Ball
from saddlepoint.coins import Coins
from saddlepoint.defense import Access

Asked = TypeVar("Asked", contravariant=True)


class Attack(Protocol[Asked]):
    """One optimiser. It knows no model, no labels and no norm."""

    needs: ClassVar[Access]  # checked against the threat model before anything runs

    @property
    def calls(self) -> int: ...  # the most readings and slopes it asks for, per example

    def __call__(self, oracle: Asked, center: Tensor, space: Ball, coins: Coins) -> Found: ...
