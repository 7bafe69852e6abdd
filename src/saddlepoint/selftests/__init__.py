"""Defenses whose robust accuracy is known: any evaluator can be scored on them."""

from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.evaluator import Audited, Evaluator, Report
from saddlepoint.selftests.families import CASES, FAMILIES
from saddlepoint.selftests.score import Line, SelfTest, selftest

__all__ = [
    "CASES",
    "FAMILIES",
    "Audited",
    "Case",
    "Evaluator",
    "Line",
    "Report",
    "SelfTest",
    "Truth",
    "selftest",
]
