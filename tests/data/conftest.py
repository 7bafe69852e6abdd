from __future__ import annotations

import os
from pathlib import Path

import pytest

REAL = os.environ.get("SADDLEPOINT_DATA")


@pytest.fixture(autouse=True)
def _isolate_from_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide data installed on the machine, and bypass proxies for the local server."""
    monkeypatch.setenv("SADDLEPOINT_DATA", str(tmp_path / "nothing-here"))
    monkeypatch.setattr("saddlepoint.data.files.SYSTEM_FOLDER", tmp_path / "no-system-folder")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def real_data() -> Path:
    """The folder of published datasets; skips the test if there is none."""
    if REAL is None:
        pytest.skip("SADDLEPOINT_DATA does not point to real data")
    return Path(REAL)
