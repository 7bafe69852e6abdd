"""The order and the appearance of verdicts and of levels of warnings on the pages."""

from __future__ import annotations

from saddlepoint.audits.verdict import Level, Verdict

VERDICTS = tuple(Verdict)  # in the order of their declaration
LEVELS = (Level.SERIOUS, Level.WARNING, Level.NOTE)
# Each level has its own shape, because a color alone is not accessible.
SHAPES = {Level.SERIOUS: "■", Level.WARNING: "▲", Level.NOTE: "●"}


def verdict_level(verdict: Verdict) -> Level:
    """Return the level of a verdict, for its color: `note` if credible, else `serious`."""
    return Level.NOTE if verdict is Verdict.CREDIBLE else Level.SERIOUS
