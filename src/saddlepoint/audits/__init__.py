"""Audits: from any model to a verdict on an estimate of its robust accuracy."""

from saddlepoint.audits.diagnostics.loss_curve import LossCurve
from saddlepoint.audits.pipeline import collect, prepare
from saddlepoint.audits.planning.plan import Plan
from saddlepoint.audits.request import AuditRequest
from saddlepoint.audits.result import Audit, Examples, Row, Symptom, Verdict
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.audits.target.admission import Target, TargetError

__all__ = [
    "Audit",
    "AuditRequest",
    "Examples",
    "Interval",
    "LossCurve",
    "Plan",
    "Row",
    "Symptom",
    "Target",
    "TargetError",
    "Verdict",
    "collect",
    "prepare",
    "wilson",
]
