"""The audit: from any model to a verdict."""

from saddlepoint.auditing.admission import Target, TargetError
from saddlepoint.auditing.ascent import Ascent
from saddlepoint.auditing.plan import Plan, conclude, plan
from saddlepoint.auditing.result import Audit, Examples, Row, Symptom
from saddlepoint.auditing.statistics import Interval, wilson

__all__ = [
    "Ascent", "Audit", "Examples", "Interval", "Plan", "Row", "Symptom", "Target", "TargetError",
    "conclude", "plan", "wilson",
]  # fmt: skip
