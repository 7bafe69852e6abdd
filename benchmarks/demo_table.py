"""Write the table of the demo into README.md, from the committed record.

    saddlepoint demo --full-autoattack --json > benchmarks/records/demo.json
    python -m benchmarks.demo_table

`tests/docs/test_demo_table.py` checks that the page and the record agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saddlepoint.cli.demo_run import Effort
from saddlepoint.phrases import at_most, percent_cell

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "records" / "demo.json"
BEGIN = "<!-- demo: written by benchmarks/demo_table.py -->\n"
END = "<!-- end of demo -->\n"


def table(record: Mapping[str, Any]) -> str:
    """The table in Markdown: one line per model of the demo.

    Args:
        record: what `saddlepoint demo --json` prints.
    """
    suite = f"{Effort(record['autoattack']).suite} (our implementation)"
    lines = [
        f"| model | authors' evaluation | {suite} | **saddlepoint** | verdict |",
        "|---|---|---|---|---|",
    ]
    for model in record["models"]:
        cells = (
            f"{model['title']} ({model['images']} images)",
            percent_cell(model["authors"]),
            percent_cell(model["autoattack"]),
            f"**{at_most(model['robust'])}**",
            f"*{model['verdict']}*",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, record: Mapping[str, Any]) -> str:
    """The page with the table of a record between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{after}"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_table(readme.read_text(), json.loads(RECORD.read_text())))
