"""Computes cells on a Ray cluster. Ray is imported only here."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.audits.planning.choice import Choice
from saddlepoint.runs.executors import needs_spec
from saddlepoint.runs.store import PackedCell
from saddlepoint.runs.work import Cell, Work, compute

_TIMEOUT = 10  # seconds until a cluster must respond


@dataclass(frozen=True)
class Ray:
    """One Ray task per cell.

    Each worker loads the target once. Cells of a lost node are computed elsewhere. Without an
    address a local cluster is started, which listens on 127.0.0.1 only.
    """

    address: str | None = None  # HOST:PORT, or "auto"; None: start a local cluster
    cpus: float | None = None  # per cell; None: the number of torch threads
    gpus: float | None = None  # per cell; None: one if it runs on a GPU
    retries: int = 5  # of a cell after its node or worker was lost

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[PackedCell]:
        """The results of cells, in the order in which they finish."""
        spec = needs_spec(spec)
        ray = self._connect()
        cpus = self.cpus if self.cpus is not None else work.threads or 1
        gpus = self.gpus if self.gpus is not None else float(work.plan.job.x.is_cuda)
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=self.retries)(_compute)
        queue = iter(cells)
        running = set[Any]()
        folder = str(Path.cwd())
        while True:
            room = 2 * max(int(ray.cluster_resources().get("CPU", 1) // max(cpus, 1e-9)), 1)
            while len(running) < room and (cell := next(queue, None)) is not None:
                running.add(task.remote(spec, cell, folder, work.remedies))
            if not running:
                return
            done, rest = ray.wait(list(running), num_returns=1)
            running = set(rest)
            try:
                yield from ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None

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


def _compute(spec: str, cell: Cell, folder: str, remedies: Sequence[Choice]) -> PackedCell:
    if Path(folder).is_dir():
        os.chdir(folder)  # relative paths of the target start at the folder of the driver
    return compute(spec, cell, remedies)
