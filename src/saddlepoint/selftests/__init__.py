"""Defenses with known robust accuracy, on which any evaluator can be scored."""

from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.evaluator import AuditEvaluator, Evaluator, Report
from saddlepoint.selftests.families import CASES, FAMILIES
from saddlepoint.selftests.score import Line, SelfTest, selftest

__all__ = [
    "CASES",
    "FAMILIES",
    "AuditEvaluator",
    "Case",
    "Evaluator",
    "Line",
    "Report",
    "SelfTest",
    "Truth",
    "selftest",
]
