"""All self-test cases, grouped by the mechanism that misleads evaluations."""

from __future__ import annotations

from saddlepoint.selftests import (
    discrete,
    dynamic,
    exits,
    gradients,
    numerics,
    operations,
    purifying,
    randomness,
    sources,
    state,
)
from saddlepoint.selftests.case import Case

FAMILIES: dict[str, tuple[Case, ...]] = {
    "masked gradients": gradients.CASES,
    "operations without a gradient in plain code": operations.CASES,
    "few levels per pixel": discrete.CASES,
    "numerics": numerics.CASES,
    "randomness": randomness.CASES,
    "state between calls": state.CASES,
    "hidden randomness and caches": sources.CASES,
    "exits and fixed points": dynamic.CASES,
    "hidden exits": exits.CASES,
    "purification": purifying.CASES,
}
CASES = tuple(case for cases in FAMILIES.values() for case in cases)
