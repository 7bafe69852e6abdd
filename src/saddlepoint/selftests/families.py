"""All self-test cases, grouped by family."""

from __future__ import annotations

from saddlepoint.selftests import (
    dynamic,
    gradients,
    numerics,
    operations,
    purifying,
    randomness,
    state,
)
from saddlepoint.selftests.case import Case

FAMILIES: dict[str, tuple[Case, ...]] = {
    "gradients": gradients.CASES,
    "operations": operations.CASES,
    "numerics": numerics.CASES,
    "randomness": randomness.CASES,
    "state": state.CASES,
    "dynamic": dynamic.CASES,
    "purifying": purifying.CASES,
}
CASES = tuple(case for cases in FAMILIES.values() for case in cases)
