"""New processes for whole calls, which never outlive the process that needs them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from saddlepoint.runs.workers import end_with_parent, without_main_script


@contextmanager
def process_pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are started as new interpreters.

    They end with this process, even if it is killed. If the block is left by an error or by an
    interruption, they are killed at once: the pool itself would wait for the calls that run.

    Args:
        count: largest number of processes.
    """
    spawn = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with without_main_script(), ProcessPoolExecutor(count, spawn, initializer=_begin) as pool:
        try:
            yield pool
        except BaseException:
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            raise


def _begin() -> None:
    """Follow the parent process, which alone decides about Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
