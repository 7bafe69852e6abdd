"""Command line: draw the conclusions from the numbers of stored multi-exit records again.

`python -m saddlepoint.papers.multi_exit.conclude RECORD...` names reduced attacks, marks masked
cells, and writes warnings and findings as a new run would. The numbers stay as they were measured.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import cast

from saddlepoint.papers.comparison import base_networks, distant_bases
from saddlepoint.papers.few_images import CAVEAT, few_images_caveats
from saddlepoint.papers.masking import mark_masked, masked_warnings
from saddlepoint.papers.multi_exit import out_of_sample, table_1, table_3
from saddlepoint.papers.multi_exit.scales import SETTINGS, MultiExitSetting
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.result import Result, read

_FINDINGS = {"multi-exit/table-1": table_1.findings, "multi-exit/table-3": table_3.findings}
# An interval of width zero over images: no image has another result.
_NO_DIFFERENCE = re.compile(
    r"(?P<network>[^,]+), .+: (?P<pair>NEED minus .+) is \+0\.0 points \(\+0\.0 to \+0\.0\)"
)


def conclude(result: Result) -> Result:
    """Return the result with new names of attacks, marks, warnings and findings.

    Args:
        result: a result of Table 1, Table 3 or the out-of-sample experiment.
    """
    setting = SETTINGS[cast("Scale", result.scale)]
    notes = tuple(
        setting.budgets if note.startswith("AutoAttack with") else note for note in result.notes
    )
    renamed = replace(result, notes=notes)
    if result.experiment == "multi-exit/out-of-sample":
        return _concluded_out_of_sample(renamed, setting)
    table = result.tables[0]
    table = replace(table, columns=tuple(map(setting.name, table.columns)))
    table = mark_masked(table, setting.weaker)
    bases = distant_bases(base_networks(table, ("clean",)))
    return replace(
        renamed,
        tables=(table, *result.tables[1:]),
        findings=(*few_images_caveats([table]), *_FINDINGS[result.experiment](table)),
        symptoms=(*masked_warnings(table, setting.weaker), *bases),
    )


def _concluded_out_of_sample(result: Result, setting: MultiExitSetting) -> Result:
    """Name the reduced attack, and do not compare strategies with equal results on every image."""
    *tables, last = result.tables
    columns = [
        f"{setting.name('AutoAttack')}{name.removeprefix('AutoAttack')}"
        if name.startswith("AutoAttack,")
        else name
        for name in last.columns
    ]
    last = replace(last, columns=tuple(columns))
    comparisons = list[str]()
    for text in result.findings:
        if "that under AIMER is" in text or CAVEAT.match(text):
            continue  # computed again below
        match = _NO_DIFFERENCE.match(text)
        sentence = match and (
            f"{match['network']}: {match['pair'].replace(' minus ', ' and ')} have the same result "
            "on every test image."
        )
        if (sentence or text) not in comparisons:
            comparisons.append(sentence or text)
    every = (*tables, last)
    findings = (*few_images_caveats(every), *comparisons, *out_of_sample.gaps(last))
    return replace(result, tables=every, findings=findings)


def main() -> None:
    """Rewrite the records that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m saddlepoint.papers.multi_exit.conclude",
        description="Write names, warnings and findings of records from their numbers again.",
    )
    parser.add_argument(
        "records", nargs="+", type=Path, help="records of table-1, table-3 and out-of-sample"
    )
    for path in parser.parse_args().records:
        result = read(path.read_text(encoding="utf-8"), str(path))
        path.write_text(conclude(result).text(), encoding="utf-8")


if __name__ == "__main__":
    main()
