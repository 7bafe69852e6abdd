"""From an experiment to files: record, table and charts in a folder; and a page from records."""

from __future__ import annotations

from pathlib import Path

from saddlepoint.papers.charts import drawn
from saddlepoint.papers.markdown import READING, of_result
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Result, read


def reproduce(experiment: Experiment, request: Request) -> tuple[Result, Path]:
    """Run it, going on where an earlier run in the same folder was; `FOLDER/NAME.json`, `.md` and `.svg` are written."""
    result = experiment.run(request)
    record = request.out / f"{experiment.name}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(result.text(), encoding="utf-8")
    record.with_suffix(".md").write_text(of_result(result) + f"\n{READING}\n", encoding="utf-8")
    _draw(result, record.parent)
    return result, record


def page(records: Path, out: Path, *, title: str, intro: str) -> Path:
    """A Markdown page about all records of a folder, in the order of their names, with the charts beside it."""
    files = sorted(records.glob("*.json"))
    if not files:
        raise FileNotFoundError(
            f"{records} holds no records. Copy those of `saddlepoint reproduce` there: FOLDER/PAPER/NAME.json."
        )
    results = [read(file.read_text(encoding="utf-8"), str(file)) for file in files]
    folder = out.with_suffix("")
    out.parent.mkdir(parents=True, exist_ok=True)
    for result in results:
        if result.charts:
            folder.mkdir(exist_ok=True)
            _draw(result, folder)
    sections = [of_result(result, level=2, charts=f"{folder.name}/") for result in results]
    out.write_text(
        "\n".join([f"# {title}\n", intro + "\n", READING + "\n", *sections]), encoding="utf-8"
    )
    return out


def _draw(result: Result, folder: Path) -> None:
    for chart in result.charts:
        (folder / f"{chart.name}.svg").write_text(drawn(chart) + "\n", encoding="utf-8")
