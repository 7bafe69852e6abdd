"""A small run with 40 attack cells, an executor that counts, and how two stores are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from saddlepoint.audits import Audit
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.work import Cell, Work

TARGETS = Path(__file__).with_name("targets.py")
ATTACKS = tuple(AttackSpec(kind="apgd", name=f"apgd-{k}", steps=5 + k, loss="ce") for k in range(9))


def spec(target: str = "linear", n: int = 40, attacks: tuple[AttackSpec, ...] = ATTACKS) -> RunSpec:
    """4 groups x (the clean images and 9 attacks) = 40 attack cells."""
    return RunSpec(
        target=f"{TARGETS}:{target}",
        data=DataSpec(n=n),
        threat=ThreatSpec(eps="0.05"),
        attacks=attacks,
        batch_size=n // 4,
        allow_unusual=True,  # the target is not trained
    )


def content(folder: Path) -> dict[str, bytes]:
    """All files of a run that must not depend on time.

    The ledgers, audit.json and the report contain seconds.
    """
    files = [
        folder / "run.json",
        folder / "points.safetensors",
        *(folder / "cells").iterdir(),
        *(folder / "diagnostics" / "cells").iterdir(),
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def record_without_times(folder: Path) -> dict[str, object]:
    """The record of an audit without seconds."""
    record = Audit.load(folder).record()
    rows = [{**row, "seconds": None} for row in record["rows"]]
    return {**record, "rows": rows, "seconds": None, "stages": None}


class CountingExecutor(Serial):
    """The serial executor, with lists of what it computed."""

    def __init__(self) -> None:
        self.computed: list[PackedCell] = []
        self.works: list[Work] = []  # one per call of `run`

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[PackedCell]:
        self.works.append(work)
        for packed in super().run(work, spec, cells):
            self.computed.append(packed)
            yield packed

    @property
    def attacks(self) -> list[str]:
        """Keys of the attack cells that were computed."""
        return [one.key for one in self.computed if "adversary" in json.loads(one.record)]

    @property
    def measurements(self) -> list[str]:
        """Keys of the re-evaluations and diagnostics that were computed."""
        return [one.key for one in self.computed if "measurement" in json.loads(one.record)]
