"""Defences whose robust accuracy is known: any evaluator can be scored on them."""

from saddlepoint.selftesting.case import Case, Truth
from saddlepoint.selftesting.evaluator import Audited, Evaluator, Report
from saddlepoint.selftesting.families import CASES, FAMILIES
from saddlepoint.selftesting.score import Line, SelfTest, selftest

__all__ = ["CASES", "FAMILIES", "Audited", "Case", "Evaluator", "Line", "Report", "SelfTest", "Truth", "selftest"]
