"""Torch modes inside the threads that a target starts: a mode acts on one thread only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

_submit = ThreadPoolExecutor.submit
_run = threading.Thread.run


@contextmanager
def inside_threads(mode: TorchFunctionMode) -> Iterator[None]:
    """Apply a mode to work that other threads do for this one.

    Args:
        mode: the mode, which is active in this thread.
    """

    def under_mode(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with mode:
                return function(*args, **kwargs)

        return call

    def submit(
        pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return _submit(pool, under_mode(function), *args, **kwargs)

    def run(thread: threading.Thread) -> None:
        # A worker of a pool outlives the call: the mode applies to what is submitted to it.
        if _is_pool_worker(thread):
            _run(thread)
        else:
            under_mode(_run)(thread)

    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign, assignment]
    threading.Thread.run = run  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = _submit  # type: ignore[method-assign]
        threading.Thread.run = _run  # type: ignore[method-assign]


def _is_pool_worker(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) == ThreadPoolExecutor.__module__
