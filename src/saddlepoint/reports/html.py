"""An audit as one HTML page that needs no network: the verdict in words, what speaks against it, then the numbers."""

from __future__ import annotations

import re
from pathlib import Path

from saddlepoint.audits.result import Audit, Level
from saddlepoint.reports.context import Part, Subject
from saddlepoint.reports.document import document, put
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.sections import SECTIONS


def write(audit: Audit, path: Path, *, folder: Path | None = None, home: str = "") -> Path:
    """Write the page to the file `path` and return it. `folder` is the run's, by default where the page goes."""
    return put(path, page(Subject.of(audit, folder or path.parent, home)))


def page(subject: Subject) -> str:
    """The whole document."""
    audit = subject.audit
    parts = [part for make in SECTIONS if (part := make(subject)) is not None]
    body = tag(
        "main",
        tag("p", tag("a", "← All runs", href=subject.home), class_="brand")
        if subject.home
        else Markup(""),
        tag("p", "saddlepoint audit", class_="brand"),
        tag("h1", audit.target),
        tag("p", audit.threat, class_="quiet"),
        _verdict(audit),
        contents(parts),
        *(section(part) for part in parts),
        tag(
            "footer",
            tag(
                "p",
                f"Written by saddlepoint {audit.versions.get('saddlepoint', '')}.",
                class_="quiet",
            ),
        ),
    )
    return document(f"{audit.target}: {audit.verdict}", body)


def section(part: Part) -> Markup:
    """A part with its title, to which `contents` leads."""
    return tag("section", tag("h2", part.title), *part.body, id=_anchor(part.title))


def contents(parts: list[Part]) -> Markup:
    """A link to every section."""
    links = (tag("a", part.title, href=f"#{_anchor(part.title)}") for part in parts)
    return tag("nav", *links, class_="contents", aria_label="Sections")


def _anchor(title: str) -> str:
    """`What each attack took` -> `what-each-attack-took`; titles are ours, not the user's."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _verdict(audit: Audit) -> Markup:
    level: Level = "note" if audit.verdict == "holds so far" else "serious"
    told = audit.summary().removeprefix(f"{audit.verdict}: ")  # the label says so
    return tag(
        "div",
        tag("span", f"Verdict: {audit.verdict}", class_="label"),
        tag("p", told[:1].upper() + told[1:]),
        tag("ul", *(tag("li", reason) for reason in audit.reasons), class_="quiet"),
        class_=f"verdict {level}",
    )
