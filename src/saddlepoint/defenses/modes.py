"""Evaluation mode for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """Put the network in eval mode inside the block; afterwards restore the mode of each module."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
