"""Peak memory of long runs: many images, many attacks, and a game with seven exits.

    python -m benchmarks.long_runs --out benchmarks/records/long-runs.json

Each run is a process of its own, and its largest resident memory is recorded. Targets are linear,
so that the time goes into cells and not into the model. `data_megabytes` is what a run has to hold:
the images; the worst point of each image for an audit; and for a game the outcome of every attack
on every image for every set of exits, one byte each. `growth` compares two runs with different
numbers of images: by how much the peak without the data of the larger run is above that of the
smaller one. `growth_with_attacks` compares the peaks of two audits of the same images with
different numbers of attacks. `compacted` is the folder after `saddlepoint runs compact`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.long_run_targets import SHAPE

from saddlepoint.runs.store import versions

_FILE = Path(__file__).with_name("long_run_targets.py")
_START = "from saddlepoint.cli import main; main()"


def audit(images: int, attacks: int, folder: Path) -> dict[str, Any]:
    """An audit with so many images and attacks."""
    lines = [
        "schema_version = 2",
        f'target = "{_FILE}:linear"',
        "batch_size = 250",
        "[data]",
        f'name = "{_FILE}:images"',
        f"n = {images}",
        "[threat]",
        'radius = "0.002"',
    ]
    for k in range(attacks):
        lines += ["[[attacks]]", 'kind = "fgsm"', f'name = "fgsm-{k}"']
    file = folder / "spec.toml"
    file.write_text("\n".join(lines))
    return _measured("audit", images, attacks, ["run", str(file)], folder)


def game(images: int, folder: Path) -> dict[str, Any]:
    """A game of seven exits in which every subset is attacked."""
    words = ["game", f"{_FILE}:exits", "--data", f"{_FILE}:images", "--n", str(images)]
    words += ["--eps", "0.002", "--attack", "fgsm", "--batch-size", "250"]
    return _measured("game", images, 2**7 - 1, words, folder)


def _measured(
    kind: str, images: int, attacks: int, words: list[str], folder: Path
) -> dict[str, Any]:
    out = folder / "run"
    usage = _resources([*words, "--out", str(out), "--quiet"])
    image = SHAPE[0] * SHAPE[1] * SHAPE[2] * 4
    size = 2 * image if kind == "audit" else image + attacks * attacks
    found = {
        "kind": kind,
        "images": images,
        "attacks": attacks,
        "data_megabytes": round(images * size / 2**20, 1),
        **usage,
        **_size(out),
    }
    usage = _resources(["runs", "compact", str(out)])
    return {**found, "compacted": {**usage, **_size(out)}}


def _resources(words: list[str]) -> dict[str, float]:
    """Largest memory and CPU time of a command."""
    process = subprocess.Popen([sys.executable, "-c", _START, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(words)} failed.")
    return {
        "peak_megabytes": round(usage.ru_maxrss / 1024, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
    }


def _size(out: Path) -> dict[str, float]:
    files = [path for path in out.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return {"files": len(files), "folder_megabytes": round(size / 2**20, 1)}


def growth(small: dict[str, Any], large: dict[str, Any]) -> float:
    """How much more memory the larger run needs beside its data."""
    beside = [one["peak_megabytes"] - one["data_megabytes"] for one in (small, large)]
    return round(beside[1] / beside[0] - 1, 4)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, nargs=2, default=[2000, 10000])
    parser.add_argument("--game-images", type=int, nargs=2, default=[200, 1000])
    parser.add_argument("--attacks", type=int, nargs=2, default=[3, 30])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/long-runs.json"))
    parser.add_argument("--only", choices=["audit", "game"], help="keep the record of the others")
    arguments = parser.parse_args()
    few, many = arguments.attacks
    small, large = arguments.images
    audits = [("audit", small, many), ("audit", large, many), ("audit", large, few)]
    games = [("game", n, 2**7 - 1) for n in arguments.game_images]
    cases = [one for one in (*audits, *games) if arguments.only in (None, one[0])]
    runs = []
    if arguments.only:
        before = json.loads(arguments.out.read_text())["runs"]
        runs = [one for one in before if one["kind"] != arguments.only]
    for kind, images, attacks in cases:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            one = game(images, folder) if kind == "game" else audit(images, attacks, folder)
        runs = sorted([*runs, one], key=lambda run: run["kind"])
        print(json.dumps(one), flush=True)
        arguments.out.write_text(json.dumps(_record(runs), indent=1) + "\n")


def _record(runs: list[dict[str, Any]]) -> dict[str, Any]:
    of_kind = {kind: [run for run in runs if run["kind"] == kind] for kind in ("audit", "game")}
    audits = of_kind["audit"]
    record: dict[str, Any] = {
        "command": "python -m benchmarks.long_runs",
        "versions": versions(),
        "growth": {kind: growth(*own[:2]) for kind, own in of_kind.items() if len(own) > 1},
        "runs": runs,
    }
    if len(audits) > 2:
        ratio = audits[1]["peak_megabytes"] / audits[2]["peak_megabytes"]
        record["growth_with_attacks"] = round(ratio - 1, 4)
    return record


if __name__ == "__main__":
    main()
