"""Writing results to disk: record, tables and charts of one experiment, and a page from records."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from saddlepoint.papers import EXPERIMENTS
from saddlepoint.papers.charts import draw_svg
from saddlepoint.papers.comparison import PaperComparison
from saddlepoint.papers.markdown import READING, result_markdown
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Result, read

STALE = "stale.toml"  # in a folder of records: why a record is stale, by its name without suffix


def reproduce(experiment: Experiment, request: Request) -> tuple[Result, Path]:
    """Run an experiment and write `OUT/NAME.json`, `OUT/NAME.md` and its charts as SVG files.

    A run that was interrupted resumes when it is started again with the same output folder.

    Args:
        experiment: the experiment to run.
        request: scale, seed, output folder and progress callback.

    Returns:
        The result and the path of its JSON record.
    """
    result = experiment.run(request)
    record = request.out / f"{experiment.name}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(result.text(), encoding="utf-8")
    record.with_suffix(".md").write_text(
        result_markdown(result, comparison=experiment.compare(result)) + f"\n{READING}\n",
        encoding="utf-8",
    )
    _write_charts(result, record.parent)
    return result, record


def write_page(records: Path, out: Path, *, title: str, intro: str) -> Path:
    """Write a Markdown page from all records of a folder, sorted by file name.

    The comparison with the paper is made from the tables of the records, so it is that of the
    current code. Records in the folder's `stale.toml` are marked with the reason that it gives.

    Args:
        records: folder with `*.json` records.
        out: markdown file to write; charts are written to a folder of the same name next to it.
        title: heading of the page.
        intro: first paragraph of the page.

    Returns:
        The path `out`.

    Raises:
        FileNotFoundError: if the folder contains no records.
        ValueError: if `stale.toml` names a record that is not there.
    """
    files = sorted(records.glob("*.json"))
    if not files:
        raise FileNotFoundError(
            f"{records} contains no records. Copy records written by `saddlepoint reproduce` "
            "there: OUT/PAPER/NAME.json."
        )
    results = {file.stem: read(file.read_text(encoding="utf-8"), str(file)) for file in files}
    stale = stale_reasons(records)
    _require_known(stale, results, records / STALE)
    folder = out.with_suffix("")
    out.parent.mkdir(parents=True, exist_ok=True)
    for result in results.values():
        if result.charts:
            folder.mkdir(exist_ok=True)
            _write_charts(result, folder)
    sections = [
        result_markdown(
            result,
            level=2,
            charts=f"{folder.name}/",
            comparison=_comparison(result),
            stale=stale.get(name, ""),
        )
        for name, result in results.items()
    ]
    parts = [f"# {title}\n", intro + "\n", READING + "\n", *sections]
    out.write_text("\n".join(parts), encoding="utf-8")
    return out


def _comparison(result: Result) -> PaperComparison | None:
    experiment = EXPERIMENTS.get(result.experiment)
    return experiment.compare(result) if experiment else None


def stale_reasons(records: Path) -> dict[str, str]:
    """Read `stale.toml` of a folder of records: the reasons by the name of the record."""
    file = records / STALE
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _require_known(reasons: Mapping[str, str], results: Mapping[str, Result], place: Path) -> None:
    unknown = [name for name in reasons if name not in results]
    if unknown:
        raise ValueError(
            f"{place} marks {', '.join(unknown)}, but the folder has only {', '.join(results)}. "
            "Remove the entry of a record that was removed."
        )


def _write_charts(result: Result, folder: Path) -> None:
    for chart in result.charts:
        (folder / f"{chart.name}.svg").write_text(draw_svg(chart) + "\n", encoding="utf-8")
