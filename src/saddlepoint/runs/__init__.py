"""Runs that survive: specification, store, executors.

The runner is imported when it is first used: a specification can be read, and the installation examined, without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.runs.cache import Interrupted, Watch
    from saddlepoint.runs.cached_play import kept
    from saddlepoint.runs.runner import audit, run_spec

__all__ = ["Interrupted", "Watch", "audit", "kept", "run_spec"]
_HOME = {
    "Interrupted": "cache",
    "Watch": "cache",
    "audit": "runner",
    "kept": "cached_play",
    "run_spec": "runner",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'saddlepoint.runs' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.runs.{_HOME[name]}"), name)
