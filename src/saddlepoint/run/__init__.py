"""Runs that survive: specification, store, executors."""

from saddlepoint.run.runner import Interrupted, Watch, audit, run_spec

__all__ = ["Interrupted", "Watch", "audit", "run_spec"]
