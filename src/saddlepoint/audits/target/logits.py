"""Logits inside of other outputs: named tuples, dictionaries, tuples with auxiliary values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.audits.target.admission import TargetError

_NAME = "logits"


class SelectLogits(nn.Module):
    """A net that returns several values, reduced to its logits.

    Args:
        net: the net.
        key: the logits inside its output: an attribute, a key or a position.
    """

    def __init__(self, net: nn.Module, key: str | int) -> None:
        super().__init__()
        self.net = net
        self.key = key
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        return _entry(self.net(x), self.key)


class FloatScores(nn.Module):
    """A net that returns integer scores, such as votes, as floating-point numbers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        return self.net(x).to(x.dtype)


def are_integer_scores(out: object, rows: int) -> bool:
    """Whether an output is a tensor of integers, [N, C], for a number of images N."""
    if not isinstance(out, Tensor) or out.is_floating_point() or out.is_complex():
        return False
    return out.dtype != torch.bool and out.ndim == 2 and len(out) == rows and out.shape[1] > 1


def logits_key(out: object, rows: int) -> str | int | None:
    """Where the logits are inside an output; None if the output is a tensor or a list.

    They are the value named "logits", or the only tensor [N, C] of floating-point numbers.

    Args:
        out: the output of a net.
        rows: the number of images, N.

    Raises:
        TargetError: several values, or none, may be the logits.
    """
    if isinstance(out, Tensor | list):
        return None
    entries = _entries(out)
    possible = [key for key, value in entries.items() if _may_be_logits(value, rows)]
    if _NAME in possible:
        return _NAME
    if len(possible) == 1:
        return possible[0]
    if not entries:
        return None
    names = ", ".join(str(key) for key in (possible or entries))
    count = f"{len(possible)} of its values may be logits" if possible else "no value is"
    raise TargetError(
        f"the model returns {type(out).__name__}, and {count} ({names}). A value named `logits` "
        "is used, or the only tensor [N, C]. Wrap the model in a module that returns its logits, "
        "or a list of logits, one per exit."
    )


def _entries(out: Any) -> dict[str | int, object]:
    """The values inside an output, by key, attribute or position."""
    if isinstance(out, Mapping):
        return dict(out)
    if isinstance(out, tuple):
        names = getattr(out, "_fields", range(len(out)))
        return dict(zip(names, out, strict=True))
    return dict(getattr(out, "__dict__", {}))


def _may_be_logits(value: object, rows: int) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return value.ndim == 2 and len(value) == rows and value.shape[1] > 1


def _entry(out: Any, key: str | int) -> Any:
    return out if isinstance(out, Tensor) else _entries(out)[key]
