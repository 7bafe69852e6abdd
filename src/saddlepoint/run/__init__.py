"""Runs that survive: specification, store, executors.

The runner is imported when it is first used: a specification can be read, and the installation examined, without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.run.runner import Interrupted, Watch, audit, run_spec

__all__ = ["Interrupted", "Watch", "audit", "run_spec"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'saddlepoint.run' has no attribute {name!r}")
    return getattr(import_module("saddlepoint.run.runner"), name)
