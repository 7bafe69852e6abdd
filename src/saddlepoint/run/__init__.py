"""Runs that survive: specification, store, executors.

The runner is imported when it is first used: a specification can be read, and the installation examined, without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.run.kept import kept
    from saddlepoint.run.runner import audit, run_spec
    from saddlepoint.run.shelf import Interrupted, Watch

__all__ = ["Interrupted", "Watch", "audit", "kept", "run_spec"]
_HOME = {"Interrupted": "shelf", "Watch": "shelf", "audit": "runner", "kept": "kept", "run_spec": "runner"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'saddlepoint.run' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.run.{_HOME[name]}"), name)
