"""Command line: write a results page from the records in a folder.

`python -m saddlepoint.papers RECORDS PAGE`, for example
`python -m saddlepoint.papers benchmarks/records/multi-exit docs/results/multi-exit.md`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from saddlepoint.papers.write import write_page

parser = argparse.ArgumentParser(
    prog="python -m saddlepoint.papers", description="Write a results page from records."
)
parser.add_argument(
    "records", type=Path, help="folder with the records written by `saddlepoint reproduce`"
)
parser.add_argument(
    "page",
    type=Path,
    help="Markdown file to write; charts are written to a folder of the same name next to it",
)
arguments = parser.parse_args()
write_page(
    arguments.records,
    arguments.page,
    title=f"Reproduced: {arguments.records.name}",
    intro=(
        f"Generated from records by `python -m saddlepoint.papers {arguments.records} "
        f"{arguments.page}`; no number is typed by hand."
    ),
)
