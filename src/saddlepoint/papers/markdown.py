"""Results as Markdown: our number, its spread, and the paper's in brackets."""

from __future__ import annotations

from saddlepoint.papers.result import Cell, Result, Table

READING = (
    "A cell is the mean over repeats ± their standard deviation, (from–to) a 95 % interval over images where one was computed, and "
    "[the paper's number] where it has one."
)


def of_result(result: Result, *, level: int = 1, charts: str = "") -> str:
    """One experiment: what is reported, its tables, what they say, and what was done to get them; `charts` is their folder."""
    head = "#" * level
    parts = [
        f"{head} {result.experiment}: {result.title}",
        f"The paper: {result.reports}" if "(ours)" not in result.title else result.reports,
    ]
    if result.symptoms:
        parts.append("\n>\n".join(f"> **Symptom.** {symptom}" for symptom in result.symptoms))
    for table in result.tables:
        images = f" ({table.n} images{f' {table.units}' if table.units else ''})" if table.n else ""
        parts += [f"**{table.title}**{images}", of_table(table)]
    parts += [f"![{chart.title}]({charts}{chart.name}.svg)" for chart in result.charts]
    if result.findings:
        parts.append("\n".join(f"- {finding}" for finding in result.findings))
    parts.append("How it was done:\n" + "\n".join(f"- {line}" for line in _how(result)))
    return "\n\n".join(parts) + "\n"


def of_table(table: Table) -> str:
    lines = [
        [*table.labels, *table.columns],
        ["---"] * len(table.labels) + ["---:"] * len(table.columns),
    ]
    lines += [
        [*row.labels, *(shown(cell, table.digits) for cell in row.cells)] for row in table.rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(cell: Cell | None, digits: int) -> str:
    """`45.1 ± 0.2 [45.85]`."""
    if cell is None:
        return "–"
    words = [number(cell.mean, digits)]
    if len(cell.values) > 1:
        words.append(f"± {number(cell.std, digits)}")
    if cell.interval:
        words.append(f"({number(cell.interval[0], digits)}–{number(cell.interval[1], digits)})")
    if cell.paper is not None:
        words.append(f"[{number(cell.paper, digits)}]")
    return " ".join(words)


def number(value: float, digits: int) -> str:
    return f"{value:.3e}" if abs(value) >= 1e6 else f"{value:.{digits}f}"


def _how(result: Result) -> list[str]:
    repeats = f"{result.repeats} repeats" if result.repeats > 1 else "one run"
    passes = (
        f"{result.forward:.3g} forward and {result.backward:.3g} backward passes of single images"
    )
    spent = f"{result.seconds:.0f} s of attacks, {passes}"
    last = result.seed + result.repeats - 1
    seeds = f"seed {result.seed}" if result.repeats == 1 else f"seeds {result.seed} to {last}"
    versions = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    return [f"`{result.command}`: {repeats}, {seeds}; {spent}; {versions}", *result.notes]
