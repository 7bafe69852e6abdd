"""Defences whose robust accuracy is known: any evaluator can be scored on them."""

from saddlepoint.selftest.case import Case, Truth
from saddlepoint.selftest.evaluator import Audited, Evaluator, Report
from saddlepoint.selftest.families import CASES, FAMILIES
from saddlepoint.selftest.score import Line, SelfTest, selftest

__all__ = ["CASES", "FAMILIES", "Audited", "Case", "Evaluator", "Line", "Report", "SelfTest", "Truth", "selftest"]
