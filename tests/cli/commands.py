"""Helpers that call the command line."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from saddlepoint.cli import app

TARGETS = Path(__file__).with_name("cli_targets.py")
QUICK = ("--budget", "quick", "--n", "20", "--eps", "0.05")
START = "from saddlepoint.cli import main; main()"


def call(*words: str):
    """Run `saddlepoint` with these words, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def error_of(*words: str) -> str:
    """The error message of a command that must fail because of a mistake of the user.

    Such a command has exit code 2, prints no traceback, and prints nothing on standard output.
    """
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())
