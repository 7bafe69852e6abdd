"""All self-test cases, grouped by family."""

from __future__ import annotations

from saddlepoint.selftests import (
    dynamic,
    gradients,
    numerics,
    purifying,
    randomness,
    sources,
    state,
)
from saddlepoint.selftests.case import Case

FAMILIES: dict[str, tuple[Case, ...]] = {
    "gradients": gradients.CASES,
    "numerics": numerics.CASES,
    "randomness": randomness.CASES,
    "state": state.CASES,
    "sources": sources.CASES,
    "dynamic": dynamic.CASES,
    "purifying": purifying.CASES,
}
CASES = tuple(case for cases in FAMILIES.values() for case in cases)
