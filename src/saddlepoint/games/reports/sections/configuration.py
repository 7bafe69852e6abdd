"""The configuration of a game, how to reproduce it and how to verify it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tomli_w
import torch

from saddlepoint.games.runs.record import GameRecord
from saddlepoint.phrases import agree, count
from saddlepoint.reports.context import Section
from saddlepoint.reports.document import collapsible, facts, muted
from saddlepoint.reports.markup import tag

_VERIFICATION = """import json
from pathlib import Path

from safetensors.torch import load_file

record = json.loads(Path("game.json").read_text())
tensors = load_file("game.safetensors")
correct = tensors["correct"].double()  # [rows, columns, images of the game]
strategy = correct.new_tensor(record["equilibrium"]["mix"])
print("value", (correct.mean(-1) @ strategy).min().item())
worst = (correct.transpose(1, 2) @ strategy).min(0).values.mean().item()
print("same strategy, worst row per image", worst)"""


def configuration(record: GameRecord) -> Section:
    """Show what was run, and the specification in full."""
    values = {
        "target": record.target,
        "threat": record.threat,
        "data": (
            f"{record.data}, {count(record.built_on, 'image')} "
            f"{agree(record.built_on, 'builds', 'build')} the game, the next {record.scored_on} "
            "are held out"
        ),
        "game": (
            f"{count(len(record.rows), 'row')} by {count(len(record.columns), 'column')} over "
            f"{count(record.exits, 'exit')}, seed {record.seed}"
        ),
        "time": f"{record.seconds:.1f} seconds",
        "versions": ", ".join(f"{name} {number}" for name, number in record.versions.items()),
        **{f"SHA-256 of {name}": digest for name, digest in record.hashes.items()},
    }
    spec = {**_without_none(record.spec), "data": _without_none(record.spec["data"])}
    passed = json.dumps(record.passed, indent=1)
    return Section(
        "Configuration",
        (
            facts(values),
            collapsible("Specification in full (TOML)", tag("pre", tomli_w.dumps(spec))),
            collapsible("Settings as passed (JSON)", tag("pre", passed)),
        ),
    )


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Remove settings that are None, because TOML cannot express them."""
    return {name: value for name, value in values.items() if value is not None}


def reproduction(record: GameRecord) -> Section:
    """Show the command, and how to verify the outcomes without this library."""
    strategy = torch.tensor(record.equilibrium.mix, dtype=torch.float64)
    per_image = torch.stack([strategy @ rows.double() for rows in record.correct]).amin(0)
    return Section(
        "Reproduce and verify this game",
        (
            tag("h3", "On the command line"),
            tag("pre", record.command),
            tag("h3", "Verify every point"),
            tag("pre", "saddlepoint runs verify RUN"),
            tag("h3", "Verify without this library"),
            tag("pre", _VERIFICATION),
            muted(f"Expected: {record.equilibrium.value:.6f} and {float(per_image.mean()):.6f}."),
        ),
    )
