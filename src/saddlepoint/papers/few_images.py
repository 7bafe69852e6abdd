"""A caveat for findings from few images."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from saddlepoint.papers.result import Table
from saddlepoint.phrases import count, names, noun_for

CAVEAT = re.compile(r"(These|All other|Findings) .*come from .+ images?: an accuracy of 50 %")
_PRECISE = 3.0  # points; with a narrower interval no caveat is needed


def few_images_caveats(tables: Sequence[Table]) -> list[str]:
    """The uncertainty of findings from these tables, one sentence for each number of images.

    Tables with fewer images than others are named.
    """
    numbers = sorted({table.n for table in tables})
    caveats = []
    for n in numbers:
        titles = [f'"{table.title}"' for table in tables if table.n == n]
        findings = f"Findings from the {noun_for(len(titles), 'table')} {names(titles)}"
        if n == numbers[-1]:
            findings = "These findings" if len(numbers) == 1 else "All other findings"
        caveats.append(few_images_caveat(n, findings))
    return [caveat for caveat in caveats if caveat]


def few_images_caveat(n: int, findings: str = "These findings") -> str | None:
    """The uncertainty of findings from n images; None if it is below three points.

    The 95 % interval of an accuracy p over n images has the half-width 1.96 sqrt(p (1 - p) / n),
    which is largest at p = 1/2.

    Args:
        n: number of images per accuracy.
        findings: which findings these are.
    """
    half = interval_half_width(50.0, n)
    if half <= _PRECISE:
        return None
    return (
        f"{findings} come from {count(n, 'image')}: an accuracy of 50 % has a 95 % interval "
        f"from {50 - half:.0f} to {50 + half:.0f} %, so smaller differences may be chance."
    )


def interval_half_width(percent: float, n: int) -> float:
    """Half the width of the 95 % interval of an accuracy over n images, in points."""
    p = min(max(percent / 100, 0.0), 1.0)
    return 196 * math.sqrt(p * (1 - p) / n)
