"""Checks of arguments that adaptive defenses share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def require_eval_mode(module: nn.Module, *, role: str, owner: str) -> None:
    """Check that a module is in eval mode.

    Args:
        module: Module to check.
        role: What the module is to the defense, for the message: "network", "discriminator".
        owner: Name of the defense, for the message.

    Raises:
        ValueError: If the module is in training mode.
    """
    if module.training:
        raise ValueError(
            f"{owner}: the {role} is in training mode, where batch statistics and dropout change "
            "its outputs. Call .eval() on it first."
        )


def require_labeled_data(x: Tensor, y: Tensor) -> None:
    """Check that x [N, ...] is floating point, y [N] is int64 and N >= 1.

    Raises:
        ValueError: If they are not.
    """
    if (
        not x.is_floating_point()
        or x.ndim < 2
        or y.dtype != torch.int64
        or y.shape != x.shape[:1]
        or not len(x)
    ):
        raise ValueError(
            f"fit needs floating-point x [N, ...] and int64 labels y [N], "
            f"got x {x.dtype} {list(x.shape)} and y {y.dtype} {list(y.shape)}."
        )
