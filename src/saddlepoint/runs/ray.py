"""Cells on a Ray cluster. Ray is imported here and nowhere else."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saddlepoint.audits.planning.suite import Choice
from saddlepoint.runs.executors import needs_spec
from saddlepoint.runs.store import Packed
from saddlepoint.runs.work import Cell, Work, compute

_PATIENCE = 10  # seconds for a cluster to answer


@dataclass(frozen=True)
class Ray:
    """A task per cell. Each worker loads the target once; cells of a node that is lost are computed elsewhere.

    Without an address a local cluster is started, which listens on 127.0.0.1 only.
    """

    address: str | None = None
    cpus: float | None = None  # per cell; None: as many as it has threads
    gpus: float | None = None  # per cell; None: one if it runs on a GPU
    retries: int = 5  # of a cell whose node or worker was lost

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[Packed]:
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

    def _connect(self) -> Any:
        if self.address is None or self.address.startswith(("127.", "localhost")):
            # Ray takes 127.0.0.1 for a mistake and asks for the outer address instead, unless it is told that there is no cluster.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if self.address is not None:
            _refuse_silence(self.address)
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


def _refuse_silence(address: str) -> None:
    """Ray itself keeps trying for minutes."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(
            f"the address of a Ray cluster is HOST:PORT, or 'auto' for the one on this machine, got {address!r}."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"nothing answers at {address} ({error}). Start Ray there (`ray start --head --port={port}`), or leave --address out."
        ) from None


def _compute(spec: str, cell: Cell, folder: str, remedies: Sequence[Choice]) -> Packed:
    if Path(folder).is_dir():
        os.chdir(folder)  # a target named by a relative path is where it was for the one who asked
    return compute(spec, cell, remedies)
