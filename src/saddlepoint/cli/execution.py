"""How the cells of an audit are computed: the options for it, and the checks before it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saddlepoint.cli.folders import check_writable, writable

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.runs.automatic import Automatic
    from saddlepoint.runs.cache import Watch
    from saddlepoint.runs.executors import Executor
    from saddlepoint.runs.spec import RunSpec

ExecutorName = Literal["serial", "processes", "ray"]

# The section of the help page that also has the computation options of the specification.
_option = partial(typer.Option, rich_help_panel="Computation")
ExecutorOption = Annotated[
    ExecutorName | None,
    _option(
        help="Where the cells are computed: in this process, in several new processes, or on Ray.",
        show_default="copies of this process, if they save time",
        case_sensitive=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    _option(
        min=1,
        help="Number of processes. The results have the same bytes. 1: this process computes "
        "everything.",
        show_default="one per core, if they save time",
    ),
]
TimeoutOption = Annotated[
    float | None,
    _option(
        min=0.001,
        metavar="SECONDS",
        help="A cell that takes longer has failed: its process is stopped, and the other cells are "
        "computed. Implies --executor processes.",
        show_default="none",
    ),
]
SandboxOption = Annotated[
    bool,
    _option(
        "--sandbox",
        help="Run the command without network and with a read-only file system, except for the "
        "folder of the results. Needs Linux; it is an error where it is not available.",
    ),
]
AddressOption = Annotated[
    str | None,
    _option(
        metavar="HOST:PORT",
        help="Address of the Ray cluster to use. Implies --executor ray.",
        show_default="Ray is started on this machine",
    ),
]


def use_sandbox(folder: Path, files: Sequence[Path | None], *, ray: bool = False) -> None:
    """Start the command again in a sandbox in which only the results can be written.

    Args:
        folder: The folder of the results.
        files: Other files that will be written; None: no file.
        ray: Whether Ray computes the cells.

    Raises:
        ValueError: Ray is used, whose processes are elsewhere.
    """
    from saddlepoint.cli.sandbox import require_sandbox

    if ray:
        raise ValueError("--sandbox is for processes on this machine, not for Ray.")
    check_writable(folder)
    wanted = [file for file in files if file is not None]
    for file in wanted:
        file.touch()  # the folder around it cannot be written to
    require_sandbox([folder, *wanted])


def choose_executor(
    name: ExecutorName | None,
    workers: int | None,
    address: str | None,
    timeout: float | None = None,
) -> Executor | Automatic:
    """The executor that the options describe; by default the audit chooses one.

    Raises:
        ValueError: The options contradict each other.
    """
    from saddlepoint.runs.automatic import Automatic
    from saddlepoint.runs.executors import Processes, Serial

    if name is None and timeout is None and address is None:
        return Automatic(workers)
    name = name or ("ray" if address else "processes")
    if workers and name != "processes":
        raise ValueError(f"--workers is for --executor processes, not {name}.")
    if timeout and name != "processes":
        raise ValueError(f"--timeout is for --executor processes, not {name}.")
    if address and name != "ray":
        raise ValueError(f"--address is for --executor ray, not {name}.")
    if name == "ray":
        from saddlepoint.runs.ray import Ray

        return Ray(address)
    return Processes(workers, timeout=timeout) if name == "processes" else Serial()


def run(spec: RunSpec, out: Path, *, by: Executor | Automatic, watch: Watch) -> Audit:
    """Run the specification. Mistakes of the user are reported before the attacks start."""
    from saddlepoint.reports.html import write_report
    from saddlepoint.runs import run_spec

    check_device(spec.device)
    with writable(out):
        result = run_spec(spec, out, executor=by, watch=watch)
    started = time.perf_counter()
    write_report(result, out / "report.html")
    return replace(result, report_seconds=time.perf_counter() - started)


def check_device(name: str) -> None:
    """Allocate a tensor on the device.

    Raises:
        ValueError: The device does not exist or does not work.
    """
    import torch

    try:
        torch.zeros(1, device=torch.device(name))
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"the device {name!r} cannot be used ({first}). Try --device cpu."
        ) from error
