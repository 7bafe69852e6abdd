"""How the tests call the command line, and what they expect of a mistake."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from saddlepoint.cli import app

TARGETS = Path(__file__).with_name("cli_targets.py")
QUICK = ("--budget", "quick", "--n", "20", "--eps", "0.05")
START = "from saddlepoint.cli import main; main()"


def call(*words: str):
    return CliRunner().invoke(app, [str(word) for word in words])


def told(*words: str) -> str:
    """What standard error says when the user made a mistake: exit code 2, no traceback, nothing on standard output."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())
