"""The audit: from any model to a verdict."""

from saddlepoint.auditing.check import TargetError
from saddlepoint.auditing.result import Audit, Row, Symptom
from saddlepoint.auditing.run import Watch, audit
from saddlepoint.auditing.statistics import Interval, wilson
from saddlepoint.auditing.suite import autoattack, rand

__all__ = ["Audit", "Interval", "Row", "Symptom", "TargetError", "Watch", "audit", "autoattack", "rand", "wilson"]
