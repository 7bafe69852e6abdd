"""All self-test cases, grouped by family."""

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
    "gradients": gradients.CASES,
    "operations": operations.CASES,
    "discrete": discrete.CASES,
    "numerics": numerics.CASES,
    "randomness": randomness.CASES,
    "state": state.CASES,
    "sources": sources.CASES,
    "dynamic": dynamic.CASES,
    "exits": exits.CASES,
    "purifying": purifying.CASES,
}
CASES = tuple(case for cases in FAMILIES.values() for case in cases)
