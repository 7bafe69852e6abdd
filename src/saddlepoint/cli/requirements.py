"""Check an audit in continuous integration: files for the job, and the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saddlepoint.cli.console import warn
from saddlepoint.phrases import between_0_and_1

if TYPE_CHECKING:
    from saddlepoint.audits import Audit

_NOT_MET = 1  # exit code


def as_fraction(value: float | None) -> float | None:
    """An option that is an accuracy between 0 and 1.

    Raises:
        typer.BadParameter: it is outside of that range, such as a percentage.
    """
    if value is None or 0 <= value <= 1:
        return value
    raise typer.BadParameter(between_0_and_1(value))


def check_requirements(
    audit: Audit, fail_under: float | None, junit: Path | None, summary: Path | None
) -> None:
    """Write the requested files and end with code 1 if a requirement is not met.

    Args:
        audit: the audit.
        fail_under: the lowest robust accuracy that is accepted; None: any.
        junit: a file for the result in the format of JUnit; None: not written.
        summary: a file to which a Markdown summary is appended; None: not written.
    """
    from saddlepoint.reports import ci

    required = ci.requirements(audit, fail_under)
    for file in filter(None, (junit, summary)):
        file.parent.mkdir(parents=True, exist_ok=True)
    if junit is not None:
        junit.write_text(ci.junit(audit, required), encoding="utf-8")
    if summary is not None:
        with summary.open("a", encoding="utf-8") as text:
            text.write(ci.markdown_summary(audit, required))
    missed = [requirement for requirement in required if not requirement.met]
    for requirement in missed:
        warn(f"Not met: {requirement.message}")
    if missed:
        raise typer.Exit(_NOT_MET)
