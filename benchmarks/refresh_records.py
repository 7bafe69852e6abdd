"""Check that committed records of experiments are those of the current code.

    python -m benchmarks.refresh_records [RECORD ...]

A record names the commit that it was made by and a fingerprint of the sources that its numbers
depend on. If these sources have changed since, the experiment runs again at scale tiny and its
result is compared with the one that belongs to the record. If both are equal, the record gets the
new fingerprint. If not, or if the record has no fingerprint, it is entered in `stale.toml` of its
folder. Without arguments all records are checked; a record whose sources have not changed costs
nothing. One thread, seed 0.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from benchmarks.released_defenses import CLOSED_LOOP, SOAP_EXPERIMENT

from saddlepoint.atomic import write_atomic
from saddlepoint.papers import EXPERIMENTS, Experiment, Request
from saddlepoint.papers.fingerprint import fingerprint
from saddlepoint.papers.provenance import source_commit
from saddlepoint.papers.result import Result, read
from saddlepoint.papers.write import STALE

RECORDS = Path(__file__).parent / "records"
FOLDERS = ("adaptive", "blind-audit", "deq", "multi-exit", "transductive")
KNOWN: Mapping[str, Experiment] = {
    **EXPERIMENTS,
    CLOSED_LOOP.name: CLOSED_LOOP,
    SOAP_EXPERIMENT.name: SOAP_EXPERIMENT,
}
HEADER = "# Why a record is stale, by its name. The page shows the reason above the numbers.\n"


def main() -> None:
    """Check records, refresh those that a probe confirms, and mark the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("records", type=Path, nargs="*", help="record files; default: all")
    chosen: Sequence[Path] = parser.parse_args().records or record_files()
    torch.set_num_threads(1)
    for path in chosen:
        print(f"{path.parent.name}/{path.stem}: {refresh(path)}", flush=True)


def record_files() -> list[Path]:
    """Return the committed records of experiments."""
    return [path for folder in FOLDERS for path in sorted((RECORDS / folder).glob("*.json"))]


def objection(path: Path) -> str:
    """Say why the numbers of a record may not be those of the current code; empty if they are."""
    result = _read(path)
    made = result.code
    if made is None or not result.versions.get("commit"):
        return "it names no commit and no fingerprint of the code that made it"
    if result.not_run:  # it has costs, which depend on the machine, and no numbers of attacks
        return ""
    if made.fingerprint != fingerprint(KNOWN[result.experiment].modules):
        return f"the sources that its numbers depend on changed after {result.versions['commit']}"
    return "" if made.probe else "its probe was not run"


def refresh(path: Path) -> str:
    """Check one record and change it or `stale.toml` if necessary; say what was found."""
    if path.stem in stale_reasons(path.parent):
        return "stale"
    if not objection(path):
        return "current"
    result = _read(path)
    made = result.code
    commit = result.versions.get("commit")
    if made is None or not commit:
        return mark(path, "Made before records named the code that made them. To be run again.")
    experiment = KNOWN[result.experiment]
    current = fingerprint(experiment.modules)
    if made.fingerprint != current and not made.probe:
        return mark(path, f"The code changed after {commit}, before a probe was run.")
    probe = "-".join(run_probe(name) for name in experiment.probes or (experiment.name,))
    if made.probe and probe != made.probe:
        return mark(
            path,
            f"The code changed after {commit}, and a small run of the experiment now gives "
            f"other numbers (seen at {source_commit() or 'an unknown commit'}). To be run again.",
        )
    new = replace(result, code=replace(made, fingerprint=current, probe=probe))
    write_atomic(path, new.text().encode())
    return "refreshed: a small run gives the same numbers" if made.probe else "probe stored"


@cache
def run_probe(name: str) -> str:
    """Run an experiment at scale tiny in a new folder and return the digest of its values."""
    with tempfile.TemporaryDirectory() as folder:
        return EXPERIMENTS[name].run(Request(Path(folder))).probe()


def mark(path: Path, reason: str) -> str:
    """Enter a record in `stale.toml` of its folder with the reason, and say so."""
    reasons = {**stale_reasons(path.parent), path.stem: reason}
    lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}\n" for name, text in reasons.items()]
    (path.parent / STALE).write_text(HEADER + "".join(lines), encoding="utf-8")
    return f"marked as stale: {reason}"


def stale_reasons(folder: Path) -> dict[str, str]:
    """Read why records of a folder are stale, by name."""
    file = folder / STALE
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _read(path: Path) -> Result:
    return read(path.read_text(encoding="utf-8"), str(path))


if __name__ == "__main__":
    main()
