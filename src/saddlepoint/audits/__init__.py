"""The audit: from any model to a verdict."""

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.plan import Plan, conclude, plan
from saddlepoint.audits.result import Audit, Examples, Row, Symptom
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.audits.target.admission import Target, TargetError

__all__ = [
    "Audit",
    "Examples",
    "Interval",
    "LossCurve",
    "Plan",
    "Row",
    "Symptom",
    "Target",
    "TargetError",
    "conclude",
    "plan",
    "wilson",
]  # fmt: skip
