"""Records name the code that made them, and a change of this code makes them stale."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import refresh_records
from benchmarks.refresh_records import objection, record_files, refresh, stale_reasons

from saddlepoint.papers import EXPERIMENTS
from saddlepoint.papers import fingerprint as module
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.fingerprint import (
    CodeVersion,
    digest_of_margins,
    fingerprint,
    imported_modules,
)
from saddlepoint.papers.result import Cell, Result, Row, Table, read

SOURCES = {
    "papers/table.py": '"""A table."""\nfrom saddlepoint.attacks.pgd import PGD\nX = PGD\n',
    "attacks/__init__.py": "",
    "attacks/pgd.py": "def PGD(steps):\n    from saddlepoint.rng import key\n    return key\n",
    "rng.py": "key = 1\n",
    "other.py": "unused = 1\n",
    "reports/page.py": "title = 1\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small package in the place of saddlepoint."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def changed(package: Path, name: str, text: str) -> bool:
    before = fingerprint(["saddlepoint.papers.table"], package)
    (package / name).write_text(text)
    module._module.cache_clear()
    return fingerprint(["saddlepoint.papers.table"], package) != before


@pytest.mark.parametrize(
    ("name", "text", "changes"),
    [
        ("rng.py", "key = 2\n", True),
        ("attacks/pgd.py", "def PGD(steps):\n    return steps\n", True),
        ("papers/table.py", "from saddlepoint.attacks.pgd import PGD\nX = PGD, PGD\n", True),
        ("rng.py", "# the key\nkey = (  # of everything\n    1\n)\n", False),
        ("rng.py", '"""Random numbers."""\n\nkey = 1\n', False),
        ("other.py", "unused = 2\n", False),
        ("reports/page.py", "title = 2\n", False),
    ],
)
def test_only_changes_of_imported_code_change_a_fingerprint(
    package: Path, name: str, text: str, changes: bool
) -> None:
    assert changed(package, name, text) == changes


def test_imports_are_followed_into_functions_and_not_out_of_the_package(package: Path) -> None:
    names = {"papers.table", "attacks.pgd", "rng"}
    found = imported_modules(["saddlepoint.papers.table", "benchmarks.speed"], package)
    assert found == {f"saddlepoint.{name}" for name in names}


def test_the_sources_of_a_table_contain_its_attacks_and_defenses_but_no_reports() -> None:
    found = imported_modules(["saddlepoint.papers.adaptive.table_1"])
    assert {
        "saddlepoint.attacks.apgd",
        "saddlepoint.evaluation.referee",
        "saddlepoint.zoo.adaptive.closed_loop.defense",
        "saddlepoint.papers.adaptive.defenses",
        "saddlepoint.data.cifar",
    } <= found
    unrelated = (".reports", ".papers.runner", ".data.pull", ".data.remote")
    assert not [name for name in found if any(part in name for part in unrelated)]


@pytest.mark.parametrize("path", record_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_record_is_of_the_current_code_or_marked_as_stale(path: Path) -> None:
    if path.stem not in stale_reasons(path.parent):
        reason = objection(path)
        assert not reason, f"{reason}. Run python -m benchmarks.refresh_records {path}"


def write(folder: Path, made: CodeVersion | None, value: float = 50.0) -> Path:
    table = Table(
        "a", ("b",), ("c", "time, ×"), (Row(("d",), (Cell((value,)), Cell((value,)))),), 8
    )
    result = Result(
        "adaptive/table-1",
        "",
        "",
        "real",
        0,
        1,
        "",
        (table,),
        (),
        (),
        1.0,
        1.0,
        1.0,
        {"commit": "c0ffee"},
    )
    path = folder / "table-1.json"
    path.write_text(replace(result, code=made).text())
    return path


def current() -> CodeVersion:
    return CodeVersion(fingerprint(EXPERIMENTS["adaptive/table-1"].modules))


def test_a_record_is_refreshed_if_its_probe_still_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_records, "run_probe", lambda name: "same")
    path = write(tmp_path, replace(current(), fingerprint="old", probe="same"))
    assert objection(path)
    assert "refreshed" in refresh(path)
    assert not objection(path)
    assert not stale_reasons(tmp_path)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (None, "before records named the code"),
        (CodeVersion("old"), "before a probe was run"),
        (CodeVersion("old", probe="other"), "gives other numbers"),
    ],
)
def test_a_record_that_no_probe_confirms_is_marked_as_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: CodeVersion | None, reason: str
) -> None:
    monkeypatch.setattr(refresh_records, "run_probe", lambda name: "same")
    path = write(tmp_path, made)
    text = path.read_text()
    refresh(path)
    assert reason in stale_reasons(tmp_path)["table-1"]
    assert path.read_text() == text


def test_a_probe_of_another_machine_is_compared_with_the_commit_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_records, "run_probe", lambda name: "here")
    monkeypatch.setattr(refresh_records, "same_numbers_at", lambda commit, experiment: True)
    path = write(tmp_path, CodeVersion("old", probe="there"))
    assert "refreshed" in refresh(path)
    assert not stale_reasons(tmp_path)
    made = read(path.read_text(), "").code
    assert made == CodeVersion(current().fingerprint, probe="here")


@pytest.mark.parametrize(("header", "equal"), [(LABEL, True), ("attack", False)])
def test_numbers_are_compared_without_descriptions_of_hyper_parameters(
    tmp_path: Path, header: str, equal: bool
) -> None:
    """Such a text may name more than before; another label means another measurement."""
    result = read(write(tmp_path, None).read_text(), "")
    (table,) = result.tables
    digests = {
        refresh_records.compared_values(
            replace(
                result,
                tables=(
                    replace(
                        table,
                        labels=(*table.labels, header),
                        rows=tuple(replace(row, labels=(*row.labels, text)) for row in table.rows),
                    ),
                ),
            )
        )
        for text in ("steps 5 of 10", "steps 5 of 10, width 8 of 64")
    }
    assert (len(digests) == 1) == equal


def test_a_record_without_fingerprint_is_adopted_if_its_commit_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh_records, "run_probe", lambda name: "first")
    monkeypatch.setattr(refresh_records, "same_numbers_at", lambda commit, experiment: True)
    path = write(tmp_path, None)
    refresh(path)
    assert not objection(path)


def test_the_fingerprint_of_the_current_commit_is_that_of_its_files(tmp_path: Path) -> None:
    modules = ["saddlepoint.attacks.pgd"]
    words = ["git", "-C", str(refresh_records.RECORDS), "diff", "--quiet", "HEAD", "--", "src"]
    if subprocess.run(words, check=False).returncode:
        pytest.skip("files differ from the commit, or there is no commit")
    root = refresh_records.extract_sources("HEAD", tmp_path)
    assert root is not None
    assert fingerprint(modules, root) == fingerprint(modules)
    assert refresh_records.extract_sources("no-such-commit", tmp_path) is None


def test_a_new_record_gets_its_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_records, "run_probe", lambda name: "first")
    path = write(tmp_path, current())
    assert "probe" in objection(path)
    refresh(path)
    made = read(path.read_text(), "").code
    assert made is not None
    assert made.probe == "first"


def test_a_record_of_costs_alone_needs_no_probe(tmp_path: Path) -> None:
    path = write(tmp_path, CodeVersion("old"))
    result = replace(read(path.read_text(), ""), tables=(), not_run="it takes 9 hours.")
    path.write_text(result.text())
    assert not objection(path)
    path.write_text(replace(result, versions={}).text())
    assert "names no commit" in objection(path)


def test_a_probe_depends_on_measured_values_but_not_on_time(tmp_path: Path) -> None:
    result = read(write(tmp_path, None).read_text(), "")
    other = read(write(tmp_path, None, 51.0).read_text(), "")
    (table,) = result.tables
    ((accuracy, _),) = [row.cells for row in table.rows]
    slower = replace(table, rows=(Row(("d",), (accuracy, Cell((9.0,)))),))
    assert result.probe() != other.probe()
    assert result.probe() == replace(result, tables=(slower,), seconds=9.0).probe()
    stronger = replace(result, code=CodeVersion("same", digest_of_margins([0.123])))
    rounded = replace(result, code=CodeVersion("same", digest_of_margins([0.12301])))
    assert stronger.probe() == rounded.probe() != result.probe()
