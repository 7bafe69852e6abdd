"""A small run with 40 cells, and how two stores are compared."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec

TARGETS = Path(__file__).with_name("targets.py")
ATTACKS = tuple(AttackSpec(kind="apgd", name=f"apgd-{k}", steps=5 + k, loss="ce") for k in range(9))


def spec(target: str = "linear", n: int = 40, attacks: tuple[AttackSpec, ...] = ATTACKS) -> RunSpec:
    """4 groups x (the clean images and 9 attacks) = 40 cells."""
    return RunSpec(
        target=f"{TARGETS}:{target}",
        data=DataSpec(n=n),
        threat=ThreatSpec(eps="0.05"),
        attacks=attacks,
        batch_size=n // 4,
    )


def content(folder: Path) -> dict[str, bytes]:
    """Everything a run keeps but the two places for time: the ledger, and the seconds in what is derived from it."""
    kept = [folder / "run.json", folder / "points.safetensors", *(folder / "cells").iterdir()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}
