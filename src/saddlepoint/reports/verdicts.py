"""The order and the appearance of verdicts and of levels of warnings on the pages."""

from __future__ import annotations

from typing import get_args

from saddlepoint.audits.verdict import Level, Verdict

# The order of the declaration: credible, overstated, inconclusive.
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LEVELS: tuple[Level, ...] = ("serious", "warning", "note")
# Each level has its own shape, because a color alone is not accessible.
SHAPES: dict[Level, str] = {"serious": "■", "warning": "▲", "note": "●"}


def verdict_level(verdict: Verdict) -> Level:
    """Return the level of a verdict, for its color: `note` if credible, else `serious`."""
    return "note" if verdict == VERDICTS[0] else "serious"
