"""Computes cells on a Ray cluster. Ray is imported only here."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.audits.planning.choice import Choice
from saddlepoint.phrases import names
from saddlepoint.runs.batches import POLL, Batches
from saddlepoint.runs.executors import Result, needs_spec
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.store import versions
from saddlepoint.runs.work import Cell, FailedCell, Work, load_for, portable, result_of

_TIMEOUT = 10  # seconds until a cluster must respond
# Specification as JSON, current folder, remedies and versions of the driver.
_Common = tuple[str, str, Sequence[Choice], Mapping[str, str]]


@dataclass(frozen=True)
class Ray:
    """One Ray task per cell, or per batch of short cells.

    Each worker loads the target once. Cells of a lost node are computed elsewhere. Without an
    address a local cluster is started, which listens on 127.0.0.1 only.
    """

    address: str | None = None  # HOST:PORT, or "auto"; None: start a local cluster
    cpus: float | None = None  # per cell; None: the number of torch threads
    gpus: float | None = None  # per cell; None: one if it runs on a GPU
    retries: int = 5  # of a cell after its node or worker was lost
    batch_seconds: float = 2.0  # that the short cells of a task take together

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell | None]) -> Iterator[Result]:
        """The results of cells, in the order in which they finish."""
        spec = needs_spec(spec)
        ray = self._connect()
        cpus = self.cpus if self.cpus is not None else work.threads or 1
        gpus = self.gpus if self.gpus is not None else float(work.plan.job.x.is_cuda)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=self.retries)(_compute)
        common = ray.put((spec, str(Path.cwd()), tuple(work.remedies), versions()))
        batches = Batches(cells, self.batch_seconds)
        running: dict[Any, tuple[Cell, ...]] = {}
        while True:
            room = 2 * max(int(ray.cluster_resources().get("CPU", 1) // max(cpus, 1e-9)), 1)
            while len(running) < room and (batch := batches.next()):
                running[task.remote(common, batch)] = batch
            if running:
                done, _ = ray.wait(
                    list(running), num_returns=1, timeout=POLL if batches.blocked else None
                )
                for reference in done:
                    yield from _results(ray, reference, running.pop(reference), batches)
            elif batches.blocked:
                time.sleep(POLL)
            else:
                return

    def close(self) -> None:
        """The cluster keeps running; it ends with this process, or with its owner."""

    def _connect(self) -> Any:
        if self.address is None or self.address.startswith(("127.", "localhost")):
            # Without this setting Ray replaces 127.0.0.1 by the outer address of the machine.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if self.address is not None:
            _check_reachable(self.address)
        try:
            import ray
        except ImportError:
            raise ValueError(
                "the ray executor needs Ray: pip install 'saddlepoint[ray]'."
            ) from None
        if not ray.is_initialized():
            local: dict[str, Any] = {} if self.address else {"_node_ip_address": "127.0.0.1"}
            ray.init(
                address=self.address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                **local,
            )
        return ray


def _check_reachable(address: str) -> None:
    """Fail at once if nothing listens at the address; Ray itself would retry for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            "the address of a Ray cluster is HOST:PORT, or 'auto' for the one on this machine, "
            f"got {address!r}."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"nothing responds at {address} ({error}). Start Ray there "
            f"(`ray start --head --port={port}`), or leave --address out."
        ) from None


def _results(ray: Any, done: Any, cells: Sequence[Cell], batches: Batches) -> Iterator[Result]:
    """The results of a finished task. A cell that was lost with every node has failed."""
    try:
        results: Sequence[Result] = ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayError as error:
        if len(cells) > 1:
            batches.restore(cells)  # each of them alone: one may have cost the others their worker
            return
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        yield FailedCell(cells[0], f"its Ray worker or node was lost ({reason})")
        return
    for cell, result in zip(cells, results, strict=True):
        if isinstance(result, PackedCell):
            batches.finished(cell, result.seconds)
        yield result


class VersionMismatchError(RuntimeError):
    """A worker of the cluster has another version of the software than the driver."""


def _compute(common: _Common, cells: Sequence[Cell]) -> list[Result]:
    spec, folder, remedies, driver = common
    check_versions(driver)
    if Path(folder).is_dir():
        os.chdir(folder)  # relative paths of the target start at the folder of the driver
    work = load_for(spec, cells, remedies)
    return [portable(result_of(work, cell)) for cell in cells]


def check_versions(driver: Mapping[str, str]) -> None:
    """Check that this process has the software of the driver.

    Raises:
        VersionMismatchError: it has not, so that cells would not be comparable.
    """
    own = versions()
    wrong = [
        f"{name} {own.get(name)} instead of {number}"
        for name, number in driver.items()
        if own.get(name) != number
    ]
    if wrong:
        raise VersionMismatchError(
            f"the worker on {socket.gethostname()} has {names(wrong)}. Install the same versions "
            "on all nodes: other versions attack or round differently."
        )
