"""Images that show what happened."""

from __future__ import annotations

from saddlepoint.report.gallery import gallery
from saddlepoint.report.subject import Part, Subject


def pictures(subject: Subject) -> Part:
    """A dozen examples at most, however many images there are."""
    return Part("Examples", tuple(gallery(subject.audit)))
