"""Writing results to disk: record, tables and charts of one experiment, and a page from records."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.papers.charts import draw_svg
from saddlepoint.papers.markdown import READING, result_markdown
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Result, read


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
        result_markdown(result) + f"\n{READING}\n", encoding="utf-8"
    )
    _write_charts(result, record.parent)
    return result, record


def write_page(records: Path, out: Path, *, title: str, intro: str) -> Path:
    """Write a Markdown page from all records of a folder, sorted by file name.

    Args:
        records: folder with `*.json` records.
        out: markdown file to write; charts are written to a folder of the same name next to it.
        title: heading of the page.
        intro: first paragraph of the page.

    Returns:
        The path `out`.

    Raises:
        FileNotFoundError: if the folder contains no records.
    """
    files = sorted(records.glob("*.json"))
    if not files:
        raise FileNotFoundError(
            f"{records} contains no records. Copy records written by `saddlepoint reproduce` "
            "there: OUT/PAPER/NAME.json."
        )
    results = [read(file.read_text(encoding="utf-8"), str(file)) for file in files]
    folder = out.with_suffix("")
    out.parent.mkdir(parents=True, exist_ok=True)
    for result in results:
        if result.charts:
            folder.mkdir(exist_ok=True)
            _write_charts(result, folder)
    sections = [result_markdown(result, level=2, charts=f"{folder.name}/") for result in results]
    parts = [f"# {title}\n", intro + "\n", READING + "\n", *sections]
    out.write_text("\n".join(parts), encoding="utf-8")
    return out


def _write_charts(result: Result, folder: Path) -> None:
    for chart in result.charts:
        (folder / f"{chart.name}.svg").write_text(draw_svg(chart) + "\n", encoding="utf-8")
