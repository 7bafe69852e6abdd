"""Failures that users saw once, the tests that cover them, and that each of these tests can fail.

    python -m benchmarks.reliability_table --out benchmarks/records/reliability-table.json

For every failure there are tests, and a small change of the package that brings it back. The change
is made in a copy of the package, and the tests run against the copy: `fails` says whether they
notice it. With `--unchanged` they also run against the package as it is, where they must pass.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saddlepoint.runs.store import versions

_ROOT = Path(__file__).parent.parent
_PACKAGE = _ROOT / "src" / "saddlepoint"


@dataclass(frozen=True)
class Change:
    """A failure, the tests that cover it, and a change that brings it back."""

    failure: str
    tests: tuple[str, ...]
    file: str
    before: str
    after: str


_FOLDERS = "tests/runs/test_foreign_folders.py"
_MISBEHAVING = "tests/runs/test_misbehaving_targets.py"
_READING = "tests/runs/test_reading.py"
_SERVE = "tests/reports/test_serve.py"
CHANGES = (
    Change(
        "an attack is withheld from cells that are sealed again",
        (
            "tests/runs/test_tampering.py::"
            "test_a_withheld_attack_is_found_by_computing_five_cells_again",
        ),
        "runs/replay.py",
        "def _same_bytes(result: PackedCell | FailedCell, stored: Episode) -> bool:\n",
        "def _same_bytes(result: PackedCell | FailedCell, stored: Episode) -> bool:\n"
        "    return True\n",
    ),
    Change(
        "fields of the record are not compared",
        ("tests/runs/test_tampering.py::test_a_changed_run_with_a_new_manifest_is_found",),
        "runs/compare.py",
        "    elif not _same(recorded, expected):\n",
        "    elif False:\n",
    ),
    Change(
        "links inside a run folder are followed",
        (f"{_FOLDERS}::test_a_folder_with_a_link_is_refused_and_nothing_outside_is_removed",),
        "runs/own_files.py",
        "    for path in _own_paths(folder):\n",
        "    for path in ():\n",
    ),
    Change(
        "workers outlive a parent that is killed",
        ("tests/runs/test_processes.py::test_workers_end_with_a_parent_that_is_killed",),
        "runs/workers.py",
        "    threading.Thread(target=end_with_parent, daemon=True).start()\n    while True:\n"
        "        try:\n            task = _read(connection)\n"
        "        except (EOFError, OSError):\n            return\n"
        "        try:\n            _compute(task, connection)\n",
        "    import time\n    while True:\n"
        "        try:\n            task = _read(connection)\n"
        "        except (EOFError, OSError):\n            time.sleep(60)\n            return\n"
        "        try:\n            _compute(task, connection)\n"
        "        except OSError:\n            time.sleep(60)\n",
    ),
    Change(
        "a second SIGTERM or Ctrl-C ends in a traceback",
        (
            "tests/runs/test_processes.py::"
            "test_sigterm_stops_after_the_current_cell_and_a_second_one_at_once",
        ),
        "runs/cache.py",
        "    raise KeyboardInterrupt\n",
        "    raise RuntimeError\n",
    ),
    Change(
        "sys.exit(0) of a target ends the command with exit code 0",
        (f"{_MISBEHAVING}::test_a_target_that_exits_is_an_error_with_exit_code_2",),
        "cli/errors.py",
        "            raise typer.Exit(_MISTAKE) from error\n        except BrokenPipeError:",
        "            raise typer.Exit(0) from error\n        except BrokenPipeError:",
    ),
    Change(
        "a run of another version is accused",
        (f"{_FOLDERS}::test_a_run_of_another_version_is_verified_by_its_outcomes",),
        "runs/verify.py",
        '    return bool(run["versions"] != versions())\n',
        "    return False\n",
    ),
    Change(
        "probes use more images than fit into memory",
        (f"{_MISBEHAVING}::test_a_target_that_fits_four_images_is_audited_in_small_batches",),
        "audits/cells.py",
        "            if rows == 1 or not is_out_of_memory(error):\n",
        "            if True:\n",
    ),
    Change(
        "outputs that change during a run end in a traceback",
        (f"{_MISBEHAVING}::test_a_failure_names_adversary_and_images_and_keeps_finished_cells",),
        "runs/work.py",
        "        if isinstance(error, OutputError):\n",
        "        if False:\n",
    ),
    Change(
        "a cell whose workers die three times ends in a traceback",
        (
            "tests/runs/test_store.py::"
            "test_a_cell_that_kills_its_worker_too_often_fails_and_the_others_are_computed",
        ),
        "runs/executors.py",
        "        failed = times > self.retries\n",
        "        failed = times > self.retries\n"
        '        if failed:\n            raise OSError("died")\n',
    ),
    Change(
        "the loss of the only Ray node ends in a traceback",
        ("tests/runs/test_ray.py::test_a_cell_that_is_lost_with_the_only_node_has_failed",),
        "runs/ray.py",
        "        reason = next(iter(str(error)",
        "        raise error\n        reason = next(iter(str(error)",
    ),
    Change(
        "a label of 100,000,000 takes gigabytes",
        ("tests/data/test_fuzzed_readers.py",),
        "data/record.py",
        "MOST_CLASSES = 1_000_000 ",
        "MOST_CLASSES = 1_000_000_000 ",
    ),
    Change(
        "a cell of a newer schema is removed as damaged",
        (f"{_FOLDERS}::test_a_cell_of_a_newer_version_is_refused_and_not_removed",),
        "runs/cache.py",
        "            raise  # this version must not replace it\n",
        "            self.store.discard(key)\n            return False\n",
    ),
    Change(
        "a specification with 100,000 threads is accepted",
        (f"{_READING}::test_a_specification_that_is_none_is_explained",),
        "runs/spec_sections.py",
        "        le=1024,\n",
        "",
    ),
    Change(
        "a specification that is not in UTF-8 ends in a traceback",
        (f"{_READING}::test_a_specification_that_is_none_is_explained",),
        "runs/spec.py",
        "    except UnicodeDecodeError as error:\n",
        "    except ZeroDivisionError as error:\n",
    ),
    Change(
        "valid JSON of the wrong kind ends in a traceback",
        (
            f"{_READING}::test_the_error_names_file_field_expected_and_found",
            f"{_READING}::test_events_that_are_no_events_are_left_out",
        ),
        "runs/store.py",
        "                check(event, model, path.name)\n",
        "",
    ),
    Change(
        "terminal codes of a foreign record are printed",
        (f"{_FOLDERS}::test_control_characters_of_a_foreign_record_are_not_printed",),
        "phrases.py",
        'char if char in "\\n\\t" or char.isprintable() else',
        "char if True else",
    ),
    Change(
        "os.write of a target breaks --json",
        (f"{_MISBEHAVING}::test_json_stays_valid_if_a_target_writes_to_the_file_descriptor",),
        "cli/console.py",
        "        os.dup2(2, 1)\n        yield\n",
        "        yield\n",
    ),
    Change(
        "one unreadable folder hides all other runs",
        (f"{_FOLDERS}::test_a_folder_that_cannot_be_read_does_not_hide_the_others",),
        "runs/store.py",
        '        except OSError as error:\n            raise StoreError(f"{self.folder} cannot be',
        "        except ZeroDivisionError as error:\n"
        '            raise StoreError(f"{self.folder} cannot be',
    ),
    Change(
        "os.chdir of a target moves the results",
        (f"{_MISBEHAVING}::test_a_target_that_changes_the_folder_does_not_move_the_results",),
        "runs/global_state.py",
        "        os.fchdir(folder)\n",
        "",
    ),
    Change(
        "audits with other data share a default folder",
        (
            "tests/cli/test_audit_command.py::"
            "test_audits_with_other_data_number_of_images_or_budget_have_other_default_folders",
        ),
        "cli/folders.py",
        "norm, radius, *of_data, count, effort)",
        "norm, radius)",
    ),
    Change(
        "the server sends no content security policy",
        (f"{_SERVE}::test_the_policy_of_the_server_allows_no_network_and_one_script",),
        "reports/serve.py",
        '"Content-Security-Policy"',
        '"X-Policy"',
    ),
    Change(
        "200 idle connections take 200 threads",
        (f"{_SERVE}::test_idle_connections_do_not_take_more_than_a_few_threads",),
        "reports/serve.py",
        "        if self._free.acquire(blocking=False):\n",
        "        if self._free.acquire(blocking=False) or True:\n",
    ),
    Change(
        "a browser that closes a connection early leaves a traceback",
        (f"{_SERVE}::test_a_browser_that_closes_a_connection_early_leaves_no_traceback",),
        "reports/serve.py",
        "        if not isinstance(sys.exception(), ConnectionError | TimeoutError):\n",
        "        if True:\n",
    ),
)


def passes(source: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass against a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(_ROOT)])}
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        [sys.executable, *words, "-m", "slow or not slow"],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"the tests could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def tried(change: Change, *, unchanged: bool) -> dict[str, Any]:
    """Whether the tests of a failure notice it."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "src"
        shutil.copytree(_PACKAGE, source / "saddlepoint")
        file = source / "saddlepoint" / change.file
        text = file.read_text()
        if change.before not in text:
            raise SystemExit(f"{change.file} has no {change.before!r}.")
        found = {}
        if unchanged:
            found["passes_unchanged"] = passes(source, change.tests)
        file.write_text(text.replace(change.before, change.after, 1))
        found["fails"] = not passes(source, change.tests)
    return {**asdict(change), **found}


def main() -> None:
    """Try all changes and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--unchanged", action="store_true", help="also run without the change")
    parser.add_argument("--only", default="", help="only failures with this text")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/records/reliability-table.json")
    )
    arguments = parser.parse_args()
    rows = []
    for change in CHANGES:
        if arguments.only not in change.failure:
            continue
        rows.append(tried(change, unchanged=arguments.unchanged))
        print(rows[-1]["fails"], change.failure, flush=True)
        record = {
            "command": "python -m benchmarks.reliability_table",
            "versions": versions(),
            "noticed": sum(bool(row["fails"]) for row in rows),
            "failures": rows,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
