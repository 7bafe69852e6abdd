"""Every example in the README and in docs/ runs, and prints the output that is shown after it.

The examples of CONTRIBUTING.md change the package; `test_contributing.py` runs them on a copy.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "defenses").glob("*.md"),
    ]
)
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n+^```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> list[tuple[str, str]]:
    """The code of each example with the output that is shown; empty if none is shown."""
    return [(found[1], found[2] or "") for found in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda page: page.name)
def test_every_example_runs_and_prints_what_is_shown(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, shown in examples(page):
        capsys.readouterr()
        exec(compile(code, str(page), "exec"), names)
        if shown:
            assert capsys.readouterr().out.strip() == shown.strip()


def test_the_readme_audits_the_readers_own_defense_in_twenty_lines_and_shows_the_output() -> None:
    own = [
        (code, shown)
        for code, shown in examples(ROOT / "README.md")
        if "(sp.Defense)" in code and "sp.audit(" in code
    ]
    assert own
    for code, shown in own:
        assert len([line for line in code.splitlines() if line.strip()]) <= 20
        assert "robust accuracy" in shown


def test_the_readme_imports_only_the_package_and_the_zoo() -> None:
    for code, _ in examples(ROOT / "README.md"):
        imports = re.findall(r"^(?:from|import) .*$", code, re.MULTILINE)
        assert set(imports) <= {"import saddlepoint as sp", "from saddlepoint import zoo"}


def test_the_readme_shows_the_two_commands_that_need_no_environment() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
