"""The audit: from any model to a verdict."""

from saddlepoint.auditing.ascent import Ascent
from saddlepoint.auditing.check import TargetError
from saddlepoint.auditing.plan import Plan, Target, conclude, plan
from saddlepoint.auditing.result import Audit, Examples, Row, Symptom
from saddlepoint.auditing.statistics import Interval, wilson
from saddlepoint.auditing.suite import autoattack, rand

__all__ = [
    "Ascent", "Audit", "Examples", "Interval", "Plan", "Row", "Symptom", "Target", "TargetError",
    "autoattack", "conclude", "plan", "rand", "wilson",
]  # fmt: skip
