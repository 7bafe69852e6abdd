"""Every example in the README, in CONTRIBUTING and in docs/ runs; where a block of output follows, it is what was printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n+^```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


def examples(page: Path) -> list[tuple[str, str]]:
    return [(m[1], m[2] or "") for m in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", [p for p in PAGES if examples(p)], ids=lambda p: p.name)
def test_every_example_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, shown in examples(page):
        capsys.readouterr()
        exec(compile(code, str(page), "exec"), names)
        if shown:
            assert capsys.readouterr().out.strip() == shown.strip()


def test_the_readme_audits_a_defense_of_the_readers_own_in_twenty_lines_and_shows_what_is_printed():
    own = [
        (code, shown)
        for code, shown in examples(ROOT / "README.md")
        if "(sp.Defense)" in code and "sp.audit(" in code
    ]
    assert own
    for code, shown in own:
        assert len([line for line in code.splitlines() if line.strip()]) <= 20
        assert "robust accuracy" in shown
