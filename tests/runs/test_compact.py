"""A compacted run has few files and is otherwise the same run."""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from pathlib import Path

import pytest
from tests.cli.commands import call, error_of
from tests.runs.runs import ATTACKS, CountingExecutor, content, spec

from saddlepoint.runs.cell_archive import CellArchive
from saddlepoint.runs.compact import compact
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.gc import collect_garbage
from saddlepoint.runs.manifest import differences, read_manifest
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store, StoreError

SPEC = spec(n=8, attacks=ATTACKS[:2])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_spec(SPEC, folder, executor=Serial())
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def unpacked(run: Path, place: Path) -> dict[str, bytes]:
    """The content of a compacted run after its archives were unpacked by another program."""
    folder = Path(shutil.copytree(run, place))
    for part in (folder, folder / "diagnostics"):
        with zipfile.ZipFile(part / "cells.zip") as archive:
            archive.extractall(part / "cells")
    return content(folder)


def test_cells_keep_names_and_bytes_in_few_files(run: Path, tmp_path: Path) -> None:
    before = content(run)
    done = compact(run)
    assert done.cells == 12 + len(list(Store(run / "diagnostics").keys()))
    assert done.files == len([path for path in run.rglob("*") if path.is_file()]) <= 10
    assert done.files_before > 40
    assert done.bytes < done.bytes_before
    assert unpacked(run, tmp_path / "unpacked") == before
    assert compact(run).cells == 0


def test_manifest_and_verification_stay_valid(run: Path) -> None:
    manifest = (run / "manifest.json").read_bytes()
    compact(run)
    assert (run / "manifest.json").read_bytes() == manifest
    printed = call("runs", "verify", run, "--replay", "1")
    assert printed.exit_code == 0, printed.output


def test_a_changed_archive_is_noticed(run: Path) -> None:
    compact(run)
    store = Store(run)
    names = list(store.archived())
    other = store.cell_file(names[1]) + b" "
    store.write_archive(
        (name, lambda name=name: other if name == names[1] else store.cell_file(name))
        for name in names
    )
    manifest = read_manifest(run)
    assert manifest is not None
    assert [one.file for one in differences(run, manifest)] == [f"cells/{names[1]}"]


def test_a_compacted_run_resumes_and_computes_only_what_is_missing(run: Path) -> None:
    expected = content(run)
    key = Store(run).keys()[0]
    compact(run)
    nothing = CountingExecutor()
    run_spec(SPEC, run, executor=nothing)
    assert nothing.computed == []
    Store(run).discard(key)
    assert not Store(run).has(key)
    one = CountingExecutor()
    run_spec(SPEC, run, executor=one)
    assert [packed.key for packed in one.computed] == [key]
    record = (run / "cells" / f"{key}.json").read_bytes()
    assert record == expected[f"cells/{key}.json"]
    assert compact(run).cells == 1


def test_a_damaged_cell_in_the_archive_is_computed_again(run: Path) -> None:
    compact(run)
    store = Store(run)
    name = next(name for name in store.archived() if name.endswith(".safetensors"))
    place = store.archived()[name]
    content_of_archive = bytearray(store.archive.path.read_bytes())
    content_of_archive[place.place + 30 + len(name) + place.stored // 2] ^= 255
    store.archive.path.write_bytes(content_of_archive)
    again = CountingExecutor()
    run_spec(SPEC, run, executor=again)
    assert [packed.key for packed in again.computed] == [name.partition(".")[0]]


def test_gc_removes_unused_cells_from_the_archive(run: Path) -> None:
    used = Store(run).keys()
    run_spec(SPEC.model_copy(update={"seed": 1}), run, executor=Serial())
    compact(run)
    planned = collect_garbage(run, dry_run=True)
    assert planned.cells == 12
    assert {f"cells.zip/{key}.json" for key in used} <= set(planned.files)
    assert collect_garbage(run).bytes == planned.bytes > 0
    assert not set(used) & set(Store(run).keys())
    assert len(Store(run).keys()) == 12
    assert collect_garbage(run).cells == 0


def test_a_run_that_is_computed_or_damaged_is_not_compacted(run: Path) -> None:
    store = Store(run)
    key = store.keys()[0]
    with store.claim(key), pytest.raises(StoreError, match="is being computed"):
        compact(run)
    tensors = run / "cells" / f"{key}.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    with pytest.raises(StoreError, match="the hash of its tensors is wrong"):
        compact(run)
    assert tensors.is_file()


@pytest.mark.parametrize("damage", ["cut", "text", "link", "foreign file", "twice"])
def test_a_damaged_archive_is_an_error_that_says_what_to_do(run: Path, damage: str) -> None:
    compact(run)
    path = run / "cells.zip"
    content_before = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content_before[:-30])
    elif damage == "text":
        path.write_text("no archive")
    elif damage == "link":
        path.rename(run.parent / "other.zip")
        path.symlink_to(run.parent / "other.zip")
    else:
        name = "../evil.txt" if damage == "foreign file" else next(iter(Store(run).archived()))
        with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
            warnings.simplefilter("ignore")  # of the same name twice
            archive.writestr(name, b"{}")
    message = "is a link" if damage == "link" else "cells.zip: expected"
    for command in ("show", "gc", "compact", *(["verify"] if damage == "cut" else [])):
        assert message in error_of("runs", command, run)
    listed = call("runs", "list", run.parent, "--json")
    assert listed.exit_code == 0
    assert len(json.loads(listed.stdout)) == 1


def test_a_file_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    name = f"{'0' * 64}.json"
    archive = CellArchive(tmp_path / "cells.zip")
    archive.write([(name, lambda: bytes(10_000_000))])
    assert archive.path.stat().st_size < 100_000
    with pytest.raises(ValueError, match="expected at most 1000 bytes, found 10,000,000 bytes"):
        archive.read(name, 1000)
