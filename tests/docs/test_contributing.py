"""The promises of CONTRIBUTING.md: the named files are enough for each kind of extension.

Each section is applied to a copy of the package. Its last block runs in a new process with that
copy, and must print the output that follows it on the page.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADER = re.compile(r"(?:# |<!-- )(\S+): (new file|(?:add to|add above|replace) .+?)(?: -->)?\n")


@dataclass(frozen=True)
class Edit:
    """One block of code and where it goes."""

    file: str
    action: str  # "new file", "add to NAME", "add above NAME" or "replace NAME"
    code: str

    def apply(self, folder: Path) -> None:
        """Change the copy of the repository in `folder`."""
        path = folder / self.file
        if self.action == "new file":
            assert not path.exists(), f"{self.file} exists already"
            path.write_text(self.code)
            return
        text = path.read_text()
        if path.suffix == ".md":
            path.write_text(_with_row(text, self.code))
            return
        imports, code = _split_imports(self.code)
        verb, _, name = self.action.rpartition(" ")
        changed = {"add to": _added, "add above": _added_above, "replace": _replaced}[verb](
            text, name, code
        )
        path.write_text(_with_imports(changed, imports))


@dataclass(frozen=True)
class Section:
    """A promise: the files to touch, the edits, and a script with its output."""

    title: str
    files: tuple[str, ...]
    edits: tuple[Edit, ...]
    script: str
    output: str


def sections() -> list[Section]:
    """All sections of the page that promise something."""
    found = []
    for text in PAGE.split("\n## ")[1:]:
        title, _, body = text.partition("\n")
        files = re.search(r"^Files: (.*?)\n\n", body, re.MULTILINE | re.DOTALL)
        assert files is not None, f"{title}: no line `Files: ...`"
        *edits, script, output = [(kind, code) for kind, code in BLOCK.findall(body)]
        assert (script[0], output[0]) == ("python", "text"), title
        named = tuple(re.findall(r"`([^`]+)`", files[1]))
        found.append(Section(title, named, tuple(map(_edit, edits)), script[1], output[1]))
    return found


def _edit(block: tuple[str, str]) -> Edit:
    header = HEADER.match(block[1])
    assert header is not None, f"no file is named in the first line of:\n{block[1]}"
    return Edit(header[1], header[2], block[1][header.end() :])


def _split_imports(code: str) -> tuple[str, str]:
    """The imports at the top of a block, and the rest."""
    lines = code.splitlines(keepends=True)
    count = 0
    while count < len(lines) and re.match(r"from |import |\n", lines[count]):
        count += 1
    return "".join(lines[:count]).strip(), "".join(lines[count:])


def _with_imports(text: str, imports: str) -> str:
    if not imports:
        return text
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = text.splitlines()
    lines.insert(nodes[-1].end_lineno or 0, imports)
    return "\n".join(lines) + "\n"


def _definition(text: str, name: str) -> ast.stmt:
    """The class, function or assignment of a module with this name."""
    for node in ast.parse(text).body:
        names = [getattr(node, "name", "")]
        if isinstance(node, ast.AnnAssign):
            names = [ast.unparse(node.target)]
        if isinstance(node, ast.Assign):
            names = [ast.unparse(target) for target in node.targets]
        if name in names:
            return node
    raise AssertionError(f"there is no {name}")


def _added(text: str, name: str, code: str) -> str:
    """The code at the end of a class, table or function; there before its last statement."""
    node = _definition(text, name)
    lines = text.splitlines(keepends=True)
    if isinstance(node, ast.ClassDef):
        lines.insert(node.end_lineno or 0, textwrap.indent(code, "    "))
    elif isinstance(node, ast.FunctionDef):
        lines.insert(node.body[-1].lineno - 1, textwrap.indent(code, "    "))
    else:
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        assert node.value is not None
        row = (node.value.end_lineno or 0) - 1
        column = (node.value.end_col_offset or 0) - 1  # the closing bracket
        before = "".join(lines[:row]) + lines[row][:column]
        comma = "" if before.rstrip().endswith((",", "(", "{", "[")) else ","
        return f"{before.rstrip()}{comma}\n{code}{lines[row][column:]}" + "".join(lines[row + 1 :])
    return "".join(lines)


def _added_above(text: str, name: str, code: str) -> str:
    lines = text.splitlines(keepends=True)
    lines.insert(_definition(text, name).lineno - 1, f"{code}\n\n")
    return "".join(lines)


def _replaced(text: str, name: str, code: str) -> str:
    node = _definition(text, name)
    lines = text.splitlines(keepends=True)
    lines[node.lineno - 1 : node.end_lineno] = [code]
    return "".join(lines)


def _with_row(page: str, row: str) -> str:
    """A page with one more row in its table of items."""
    table = re.search(r"^\| item \|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert table is not None
    return page[: table.end()] + row + page[table.end() :]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the package, its tests and its pages."""
    ignored = shutil.ignore_patterns("__pycache__", "*.svg")
    for name in ("src/saddlepoint", "tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the copy of the package."""
    paths = f"{repository / 'src'}{os.pathsep}{repository}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.title)
def test_the_named_files_are_enough(section: Section, repository: Path) -> None:
    for edit in section.edits:
        edit.apply(repository)
    assert {edit.file for edit in section.edits} == set(section.files)
    done = run(repository, "-c", section.script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == section.output


def test_a_new_attack_is_covered_by_all_contracts(repository: Path) -> None:
    for edit in sections()[0].edits:
        edit.apply(repository)
    contracts = ("tests/contracts/test_attacks.py", "-k", "random and search and Linf", "-n", "0")
    options = ("-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(repository))
    done = run(repository, "-m", "pytest", "-q", *options, *contracts)
    assert done.returncode == 0, done.stdout
    assert re.search(r"[1-9]\d* passed", done.stdout)


def test_without_its_edits_the_script_of_a_section_fails(repository: Path) -> None:
    """All sections except those that only add rows to tables import what they add."""
    done = run(repository, "-c", sections()[0].script)
    assert "No module named 'saddlepoint.attacks.random_search'" in done.stderr
