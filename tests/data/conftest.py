from __future__ import annotations

import os
from pathlib import Path

import pytest

REAL = os.environ.get("SADDLEPOINT_DATA")


@pytest.fixture(autouse=True)
def _only_the_given_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees data that happens to be on the machine, nor a proxy between it and the local server."""
    monkeypatch.setenv("SADDLEPOINT_DATA", str(tmp_path / "nothing-here"))
    monkeypatch.setattr("saddlepoint.data.files.SYSTEM_FOLDER", tmp_path / "no-system-folder")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def real_data() -> Path:
    if REAL is None:
        pytest.skip("SADDLEPOINT_DATA does not point to real data")
    return Path(REAL)
