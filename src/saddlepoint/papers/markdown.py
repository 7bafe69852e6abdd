"""Results as Markdown: our number, its spread, and the paper's number in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.papers.budgets import reduced_autoattack
from saddlepoint.papers.comparison import PaperComparison
from saddlepoint.papers.flags import READING as FLAGS
from saddlepoint.papers.flags import row_flags
from saddlepoint.papers.result import Cell, Result, Table

READING = (
    "A cell shows the mean over repeats ± their standard deviation, a 95 % interval over images in "
    "parentheses (from–to) where one was computed, and [the paper's number] where the paper "
    "reports one. A *masked* number is no robust accuracy: an attack that is weaker by design "
    f"leaves a lower accuracy. {FLAGS}"
)


def result_markdown(
    result: Result,
    *,
    level: int = 1,
    charts: str = "",
    comparison: PaperComparison | None = None,
    stale: str = "",
) -> str:
    """Format one result as a Markdown section.

    The section contains what the paper reports, warnings, tables, charts, findings, the comparison
    with the paper, and how the numbers were measured.

    Args:
        result: the result to format.
        level: level of the heading.
        charts: path prefix of the chart files, ending with a slash unless empty.
        comparison: the comparison of the result with the paper's numbers.
        stale: why the numbers are no longer those of the current code; empty if they are.

    Returns:
        Markdown text ending with a newline.
    """
    ours = "(ours)" in result.title
    parts = [
        f"{'#' * level} {heading(result)}",
        result.reports if ours else f"The paper: {result.reports}",
    ]
    reduced = reduced_autoattack(result)
    texts = [
        *([reduced] if reduced else []),
        *result.symptoms,
        *(comparison.warnings if comparison else ()),
    ]
    warnings = [f"> **Warning.** {text}" for text in texts]
    if stale:
        warnings.insert(0, f"> **Stale.** {stale}")
    if warnings:
        parts.append("\n>\n".join(warnings))
    if result.not_run:
        parts.append(f"Not run: {result.not_run}")
    for table, flags in zip(result.tables, row_flags(result), strict=True):
        parts += [f"**{table.title}**{_image_count(table)}", table_markdown(table, flags)]
    parts += [f"![{chart.title}]({charts}{chart.name}.svg)" for chart in result.charts]
    if result.findings:
        parts.append("\n".join(f"- {finding}" for finding in result.findings))
    if comparison and comparison.findings:
        lines = "\n".join(f"- {finding}" for finding in comparison.findings)
        parts.append(f"Compared with the paper:\n{lines}")
    parts.append("How this was measured:\n" + "\n".join(f"- {line}" for line in _method(result)))
    return "\n\n".join(parts) + "\n"


def heading(result: Result) -> str:
    """Return the heading of a result's section."""
    third_party = result.scale == "real" and (result.weights or result.not_run)
    scale = ", third-party networks" if third_party else ""
    return f"{result.experiment}: {result.title}{scale}"


def table_markdown(table: Table, flags: Sequence[str] = ()) -> str:
    """Format a table: a header line, an alignment line, and one line per row.

    Args:
        table: the table.
        flags: a flag for every row, shown in a last column if any is not empty; default: none.
    """
    lines = [
        [*table.labels, *table.columns],
        ["---"] * len(table.labels) + ["---:"] * len(table.columns),
    ]
    lines += [
        [*row.labels, *(format_cell(cell, table.digits) for cell in row.cells)]
        for row in table.rows
    ]
    if any(flags):
        last = ("flags", "---", *flags)
        lines = [[*line, cell] for line, cell in zip(lines, last, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_cell(cell: Cell | None, digits: int) -> str:
    """Format a cell, for example `45.1 ± 0.2 [45.85]`; a missing cell is a dash."""
    if cell is None:
        return "–"
    words = [format_number(cell.mean, digits)]
    if len(cell.values) > 1:
        words.append(f"± {format_number(cell.std, digits)}")
    if cell.interval:
        low, high = (format_number(bound, digits) for bound in cell.interval)
        words.append(f"({low}–{high})")
    if cell.masked:
        words.append("*masked*")
    if cell.paper is not None:
        words.append(f"[{format_number(cell.paper, digits)}]")
    return " ".join(words)


def format_number(value: float, digits: int) -> str:
    """Format a number with so many decimal places; in scientific notation from 1e6 on."""
    return f"{value:.3e}" if abs(value) >= 1e6 else f"{value:.{digits}f}"


def _image_count(table: Table) -> str:
    if not table.n:
        return ""
    units = f" {table.units}" if table.units else ""
    return f" ({table.n} images{units})"


def _method(result: Result) -> list[str]:
    repeats = f"{result.repeats} repeats" if result.repeats > 1 else "one run"
    passes = (
        f"{result.forward:.3g} forward and {result.backward:.3g} backward passes of single images"
    )
    cost = f"{result.seconds:.0f} s of attacks, {passes}"
    last = result.seed + result.repeats - 1
    seeds = f"seed {result.seed}" if result.repeats == 1 else f"seeds {result.seed} to {last}"
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    weights = [f"weights of {name}: SHA-256 `{sha}`" for name, sha in result.weights.items()]
    measured = f"`{result.command}`: {repeats}, {seeds}; {cost}; {versions}"
    return [measured, *weights, *result.notes]
