"""Images that show what happened."""

from __future__ import annotations

from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.gallery import gallery


def pictures(subject: Subject) -> Part:
    """A dozen examples at most, however many images there are."""
    return Part("Examples", tuple(gallery(subject.audit)))
