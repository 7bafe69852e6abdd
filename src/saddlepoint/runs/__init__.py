"""Runs: specification, cells, store, executors, runner and verification.

Names are imported on first use, so that a specification can be read without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint.runs.cache import Interrupted, Watch
    from saddlepoint.runs.cached_play import cached_play
    from saddlepoint.runs.runner import run_request, run_spec
    from saddlepoint.runs.trackers import TensorBoard, Tracker, WandB

__all__ = [
    "Interrupted",
    "TensorBoard",
    "Tracker",
    "WandB",
    "Watch",
    "cached_play",
    "run_request",
    "run_spec",
]
_MODULES = {
    "Interrupted": "cache",
    "TensorBoard": "trackers",
    "Tracker": "trackers",
    "WandB": "trackers",
    "Watch": "cache",
    "cached_play": "cached_play",
    "run_request": "runner",
    "run_spec": "runner",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'saddlepoint.runs' has no attribute {name!r}")
    return getattr(import_module(f"saddlepoint.runs.{_MODULES[name]}"), name)
