"""What an attack is: an optimizer over an oracle and a space."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys

Asked = TypeVar("Asked", contravariant=True)


class Attack(Protocol[Asked]):
    """One optimizer. It knows no model, no labels and no norm."""

    needs: ClassVar[Access]  # checked against the threat model before anything runs

    @property
    def calls(self) -> int: ...  # the most readings and slopes it asks for, per example

    def __call__(self, oracle: Asked, center: Tensor, space: Ball, keys: Keys) -> AttackResult: ...


def longer(attack: Attack[Any], times: int) -> Attack[Any]:
    """The same attack with `times` as many steps, or queries; of one around another, the `inner` one."""
    names: list[str] = [f.name for f in fields(attack)] if is_dataclass(attack) else []
    held: Any = attack
    if "inner" in names:
        around: Attack[Any] = replace(held, inner=longer(held.inner, times))
        return around
    length = next((name for name in names if name in ("steps", "queries")), None)
    if length is None:
        raise TypeError(
            f"the least of several losses is climbed with as many times the steps, but {type(attack).__name__} has neither a field "
            "`steps` nor `queries`. Use another attack, or AverageLoss()."
        )
    scaled: Attack[Any] = replace(held, **{length: times * getattr(attack, length)})
    return scaled
