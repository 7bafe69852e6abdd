"""Check that committed records of experiments are those of the current code.

    python -m benchmarks.refresh_records [RECORD ...]

A record names the commit that it was made by and a fingerprint of the sources that its numbers
depend on. If these sources have changed since, the experiment runs again at scale tiny and its
result is compared with the one that belongs to the record. If both are equal, the record gets the
new fingerprint. If not, the commit that made the record runs at scale tiny on this machine as well,
and the record is entered in `stale.toml` of its folder if its numbers are others, too. A record
with a commit and no fingerprint gets one if that commit has the same sources or gives the same
numbers in a small run, and is stale if not. Without arguments all records are checked; a record
whose sources have not changed costs nothing. One thread, seed 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from benchmarks.released_defenses import CLOSED_LOOP, CLOSED_LOOP_AUDIT, SOAP_EXPERIMENT

from saddlepoint.atomic import write_atomic
from saddlepoint.papers import EXPERIMENTS, Experiment, Request
from saddlepoint.papers.adaptive.reductions import LABEL as DESCRIPTION
from saddlepoint.papers.fingerprint import CodeVersion, fingerprint
from saddlepoint.papers.provenance import source_commit
from saddlepoint.papers.result import Result, Table, read
from saddlepoint.papers.write import STALE, stale_reasons

RECORDS = Path(__file__).parent / "records"
FOLDERS = ("adaptive", "blind-audit", "deq", "multi-exit", "transductive")
KNOWN: Mapping[str, Experiment] = {
    **EXPERIMENTS,
    CLOSED_LOOP.name: CLOSED_LOOP,
    CLOSED_LOOP_AUDIT.name: CLOSED_LOOP_AUDIT,
    SOAP_EXPERIMENT.name: SOAP_EXPERIMENT,
}
_RUN = """
import sys, torch
from pathlib import Path
from saddlepoint.papers import EXPERIMENTS, Request
torch.set_num_threads(1)
print(EXPERIMENTS[sys.argv[1]].run(Request(Path(sys.argv[2]))).text())
"""
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
    experiment = KNOWN[result.experiment]
    current = fingerprint(experiment.modules)
    if made is None and commit and same_numbers_at(commit, experiment):
        made = CodeVersion(current)
    if made is None or not commit:
        return mark(path, "Made before records named the code that made them. To be run again.")
    if made.fingerprint != current and not made.probe:
        return mark(path, f"The code changed after {commit}, before a probe was run.")
    probe = "-".join(run_probe(name) for name in experiment.probes or (experiment.name,))
    # Rounding in training differs between processors, so a stored digest may be of another machine.
    if made.probe and probe != made.probe and not same_numbers_at(commit, experiment):
        return mark(
            path,
            f"The code changed after {commit}, and a small run of the experiment now gives "
            f"other numbers (seen at {source_commit() or 'an unknown commit'}). To be run again.",
        )
    new = replace(result, code=replace(made, fingerprint=current, probe=probe))
    write_atomic(path, new.text().encode())
    return "refreshed: a small run gives the same numbers" if made.probe else "probe stored"


def same_numbers_at(commit: str, experiment: Experiment) -> bool:
    """Whether a commit gives the numbers of the current code: by its sources, or in small runs."""
    with tempfile.TemporaryDirectory() as folder:
        root = extract_sources(commit, Path(folder))
        if root is None:
            return False
        if fingerprint(experiment.modules, root) == fingerprint(experiment.modules):
            return True
        probes = experiment.probes or (experiment.name,)
        return all(
            compared_values(_run_at(root, name)) == compared_values(run_tiny(name))
            for name in probes
        )


def extract_sources(commit: str, folder: Path) -> Path | None:
    """Write the package of a commit to a folder; None if the commit is not known."""
    archive = folder / "sources.tar"
    words = ("git", "archive", "--output", str(archive), commit, "src/saddlepoint")
    if subprocess.run(words, cwd=RECORDS.parents[1], capture_output=True, check=False).returncode:
        return None
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    return folder / "src" / "saddlepoint"


def _run_at(root: Path, name: str) -> Result:
    """Run an experiment at scale tiny with the package in another folder."""
    out = root.parent / "out"
    words = (sys.executable, "-c", _RUN, name, str(out))
    environment = {**os.environ, "PYTHONPATH": str(root.parent)}
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return read(found.stdout, f"{name} at another commit")


def compared_values(result: Result) -> str:
    """Return the digest of a result's tables and passes; older results have no margins.

    The labels that describe hyper-parameters are texts about the settings, not numbers.
    """
    tables = tuple(map(_without_descriptions, result.tables))
    return replace(result, tables=tables, code=None).probe()


def _without_descriptions(table: Table) -> Table:
    kept = [k for k, header in enumerate(table.labels) if header != DESCRIPTION]
    rows = [replace(row, labels=tuple(row.labels[k] for k in kept)) for row in table.rows]
    return replace(table, labels=tuple(table.labels[k] for k in kept), rows=tuple(rows))


@cache
def run_tiny(name: str) -> Result:
    """Run an experiment at scale tiny in a new folder, and read its record.

    Numbers of a record are floats, as those of a run at another commit are.
    """
    with tempfile.TemporaryDirectory() as folder:
        return read(EXPERIMENTS[name].run(Request(Path(folder))).text(), name)


def run_probe(name: str) -> str:
    """Return the digest of all values of a small run of an experiment."""
    return run_tiny(name).probe()


def mark(path: Path, reason: str) -> str:
    """Enter a record in `stale.toml` of its folder with the reason, and say so."""
    reasons = {**stale_reasons(path.parent), path.stem: reason}
    lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}\n" for name, text in reasons.items()]
    (path.parent / STALE).write_text(HEADER + "".join(lines), encoding="utf-8")
    return f"marked as stale: {reason}"


def _read(path: Path) -> Result:
    return read(path.read_text(encoding="utf-8"), str(path))


if __name__ == "__main__":
    main()
