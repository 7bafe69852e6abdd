"""`python -m saddlepoint.papers RECORDS PAGE`: a results page from the records in a folder, such as
`python -m saddlepoint.papers benchmarks/records/multi-exit docs/results/multi-exit.md`."""

from __future__ import annotations

import argparse
from pathlib import Path

from saddlepoint.papers.write import page

parser = argparse.ArgumentParser(
    prog="python -m saddlepoint.papers", description="Write a results page from records."
)
parser.add_argument("records", type=Path, help="folder with records of `saddlepoint reproduce`")
parser.add_argument(
    "page",
    type=Path,
    help="the Markdown file to write; charts go into a folder of its name beside it",
)
given = parser.parse_args()
page(
    given.records,
    given.page,
    title=f"Reproduced: {given.records.name}",
    intro=f"Written from records by `python -m saddlepoint.papers {given.records} {given.page}`; no number is typed by hand.",
)
