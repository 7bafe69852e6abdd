"""A run that is killed again and again must end with the bytes of an undisturbed one.

    python -m benchmarks.soak --minutes 120 --out benchmarks/records/soak.json

The same specification is run once undisturbed, and then in rounds while the driver or one of its
workers is killed (SIGKILL) every few seconds, at random, and the driver is started again. Rounds
are audits in one process, and one in eight is an audit with worker processes. A driver is a fork of
this process, which has loaded package and target, so that the time goes into cells; its workers
are new interpreters. At the end of a round cells, diagnostics and points of both folders
must have the same bytes, no process may be left, and no file that the undisturbed run does not
have, neither in the folder of the run nor in that for temporary files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from saddlepoint.cli import main as command_line
from saddlepoint.runs.store import Store, versions

_TARGET = "zoo:digits-pgd"
_SERIAL_ROUNDS = 8  # one in as many rounds has worker processes, whose start takes longest
_SERIAL = "serial"
_MOST_KILLS = 12  # in a round with workers; then it is left alone
_PATIENCE = 10.0  # seconds until a worker must have ended after its driver


@dataclass
class Round:
    """One run that was killed until it ended."""

    executor: str
    starts: int = 0
    drivers_killed: int = 0
    workers_killed: int = 0
    seconds: float = 0.0
    same_bytes: bool = False
    orphans: int = 0  # processes that outlived their driver by ten seconds
    leaked_files: int = 0  # files that the undisturbed run does not have
    driver_megabytes: float = 0.0  # largest resident memory
    worker_megabytes: float = 0.0


@dataclass
class Record:
    """What happened, and what was left."""

    command: str
    versions: dict[str, str]
    minutes: float = 0.0
    kills: int = 0
    drivers_killed: int = 0
    workers_killed: int = 0
    same_bytes: bool = True
    orphans: int = 0
    leaked_files: int = 0
    memory_spread: dict[str, float] = field(default_factory=dict)  # (largest - smallest) / largest
    rounds: list[Round] = field(default_factory=list)


def main() -> None:
    """Run the benchmark and write its record."""
    arguments = _arguments()
    words = ["audit", _TARGET, "--eps", "0.15", "--n", str(arguments.n), "--batch-size", "10"]
    words += ["--attacks", arguments.attacks, "--quiet"]
    command = f"python -m benchmarks.soak --minutes {arguments.minutes:g} --n {arguments.n}"
    command += f" --interval {arguments.interval:g} --attacks {arguments.attacks}"
    record = Record(f"{command} --seed {arguments.seed}", versions())
    if arguments.extend:
        record = _extended(record, json.loads(arguments.out.read_text()))
    earlier = record.minutes
    rng = random.Random(arguments.seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        temporary = Path(place) / "tmp"
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        whole = Path(place) / "whole"
        _start([*words, "--out", str(whole)])  # in this process, so that forks start at once
        while time.monotonic() - started < 60 * arguments.minutes:
            out = Path(place) / f"round-{len(record.rounds)}"
            workers = len(record.rounds) % _SERIAL_ROUNDS == 1
            executor = ["--workers", str(arguments.workers)] if workers else []
            one = Round(f"{arguments.workers} processes" if workers else _SERIAL)
            _disturb([*words, *executor, "--out", str(out)], out, one, rng, arguments.interval)
            one.same_bytes = _content(whole) == _content(out)
            one.leaked_files = len(_names(out) - _names(whole)) + len([*temporary.iterdir()])
            record.rounds.append(one)
            record.minutes = round(earlier + (time.monotonic() - started) / 60, 2)
            _summarize(record)
            arguments.out.write_text(json.dumps(asdict(record), indent=1) + "\n")
            print(json.dumps(asdict(one)), flush=True)
    if record.orphans or record.leaked_files or not record.same_bytes:
        raise SystemExit("a disturbed run differs from the undisturbed one, or left something.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--interval", type=float, default=2.0, help="mean seconds until a kill")
    parser.add_argument("--n", type=int, default=100, help="images")
    parser.add_argument("--attacks", default="apgd-ce,square")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--extend", action="store_true", help="add rounds to the record of --out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/soak.json"))
    return parser.parse_args()


def _extended(record: Record, before: dict[str, Any]) -> Record:
    """The record with the rounds of an earlier one of the same versions."""
    if before["versions"] != record.versions:
        raise SystemExit(f"the record was made with {before['versions']}.")
    return replace(
        record,
        command=f"{before['command']}; {record.command} --extend",
        minutes=before["minutes"],
        rounds=[Round(**one) for one in before["rounds"]],
    )


def _fork(words: Sequence[str]) -> int:
    """Start `saddlepoint` with these words in a fork of this process; returns its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _start(words)
    finally:
        os._exit(code)


def _start(words: Sequence[str]) -> int:
    """Run `saddlepoint` with these words; returns its exit code."""
    sys.argv = ["saddlepoint", *words]
    try:
        command_line()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _disturb(
    words: Sequence[str], out: Path, one: Round, rng: random.Random, interval: float
) -> None:
    """Start the run until it has ended by itself, and kill something now and then."""
    started = time.monotonic()
    finished = False
    while not finished:
        driver = _fork(words)
        one.starts += 1
        finished = _until_killed(driver, out, one, rng, interval)
    one.seconds = round(time.monotonic() - started, 1)


def _until_killed(driver: int, out: Path, one: Round, rng: random.Random, interval: float) -> bool:
    """Watch a driver and kill workers until it is killed or ends; returns whether it succeeded."""
    seen: set[int] = set()
    # Most kills come after a new cell, so that every start makes progress.
    known = -1 if rng.random() < 0.2 else _cells(out)
    deadline = time.monotonic() + rng.expovariate(1 / interval)
    while True:
        time.sleep(0.05)
        workers = _workers(driver)
        seen.update(workers)
        one.driver_megabytes = max(one.driver_megabytes, _peak(driver))
        one.worker_megabytes = max([one.worker_megabytes, *map(_peak, workers)])
        done, status = os.waitpid(driver, os.WNOHANG)
        if done:
            one.orphans += _outliving(seen)
            return os.waitstatus_to_exitcode(status) == 0
        enough = one.executor != _SERIAL and one.drivers_killed + one.workers_killed >= _MOST_KILLS
        if enough or time.monotonic() < deadline or _cells(out) <= known:
            continue
        if workers and rng.random() < 0.5:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
                one.workers_killed += 1
            known = _cells(out)
            deadline = time.monotonic() + rng.expovariate(1 / interval)
            continue
        os.kill(driver, signal.SIGKILL)
        _wait(driver)
        one.drivers_killed += 1
        one.orphans += _outliving(seen)
        return False


def _cells(out: Path) -> int:
    """Finished cells and diagnostics of a run."""
    return sum(len(Store(folder).keys()) for folder in (out, out / "diagnostics"))


def _workers(driver: int) -> list[int]:
    """The worker processes of a driver."""
    found = []
    for pid in descendants(driver):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


def _outliving(pids: set[int]) -> int:
    """How many processes still run some seconds later."""
    deadline = time.monotonic() + _PATIENCE
    while any(map(_is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return sum(map(_is_running, pids))


def _is_running(pid: int) -> bool:
    return _status(pid).get("State", "Z")[0] != "Z"


def _peak(pid: int) -> float:
    """The largest resident memory of a process so far, in MB."""
    return round(int(_status(pid).get("VmHWM", "0 kB").split()[0]) / 1024, 1)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _content(run: Path) -> dict[str, bytes]:
    """The files of a run that must not depend on time."""
    files = [run / "points.safetensors", *(run / "cells").iterdir()]
    files += (run / "diagnostics" / "cells").iterdir()
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def _names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def _summarize(record: Record) -> None:
    rounds = record.rounds
    record.drivers_killed = sum(one.drivers_killed for one in rounds)
    record.workers_killed = sum(one.workers_killed for one in rounds)
    record.kills = record.drivers_killed + record.workers_killed
    record.same_bytes = all(one.same_bytes for one in rounds)
    record.orphans = sum(one.orphans for one in rounds)
    record.leaked_files = sum(one.leaked_files for one in rounds)
    for kind in {one.executor for one in rounds}:
        for name in ("driver_megabytes", "worker_megabytes"):
            peaks = [getattr(one, name) for one in rounds if one.executor == kind]
            if max(peaks) > 0:
                spread = (max(peaks) - min(peaks)) / max(peaks)
                record.memory_spread[f"{kind}: {name.partition('_')[0]}"] = round(spread, 4)


if __name__ == "__main__":
    main()
