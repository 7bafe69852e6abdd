"""Images of adversarial examples."""

from __future__ import annotations

from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.gallery import gallery


def examples(context: ReportContext) -> Section:
    """Show at most twelve adversarial examples."""
    return Section("Adversarial examples", tuple(gallery(context.audit)))
