"""The report of an audit: one HTML page that needs no network.

The verdict comes first, then the warnings, then the numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

from saddlepoint.audits.result import Audit
from saddlepoint.reports.context import ReportContext, Section
from saddlepoint.reports.document import document, save_page
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.sections import SECTIONS
from saddlepoint.reports.verdicts import verdict_level
from saddlepoint.runs.manifest import refresh

REPORT = "report.html"  # name of the report in a run folder


def write_report(
    audit: Audit, path: Path, *, folder: Path | None = None, index_url: str = ""
) -> Path:
    """Write the report of an audit.

    Args:
        audit: The audit to report on.
        path: The HTML file to write.
        folder: The run folder of the audit. Default: the folder of `path`.
        index_url: URL of the leaderboard that lists this report. Default: none.

    Returns:
        `path`.
    """
    save_page(path, page(ReportContext.load(audit, folder or path.parent, index_url)))
    if path.name == REPORT and audit.folder and path.parent.samefile(audit.folder):
        refresh(path.parent, REPORT)
    return path


def page(context: ReportContext) -> str:
    """Return the report as an HTML document."""
    audit = context.audit
    sections = [section for write in SECTIONS if (section := write(context)) is not None]
    back = [tag("p", tag("a", "← All runs", href=context.index_url), class_="brand")]
    body = tag(
        "main",
        *(back if context.index_url else []),
        tag("p", "saddlepoint audit", class_="brand"),
        tag("h1", audit.target),
        tag("p", audit.threat, class_="muted"),
        _verdict(audit),
        contents(sections),
        *(section_element(section) for section in sections),
        footer(audit.versions.get("saddlepoint", "")),
    )
    return document(f"{audit.target}: {audit.verdict}", body)


def section_element(section: Section) -> Markup:
    """Return a section with its heading and the anchor that `contents` links to."""
    return tag("section", tag("h2", section.title), *section.body, id=_anchor(section.title))


def contents(sections: list[Section]) -> Markup:
    """Return the table of contents: a link to every section."""
    links = (tag("a", section.title, href=f"#{_anchor(section.title)}") for section in sections)
    return tag("nav", *links, class_="contents", aria_label="Sections")


def footer(version: str) -> Markup:
    """Return the footer with the version of saddlepoint that made the record."""
    return tag("footer", tag("p", f"Written by saddlepoint {version}.", class_="muted"))


def _anchor(title: str) -> str:
    """Return `robust-accuracy-by-attack` for the title `Robust accuracy by attack`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _verdict(audit: Audit) -> Markup:
    summary = audit.summary().removeprefix(f"{audit.verdict}: ")  # the label shows the verdict
    return tag(
        "div",
        tag("span", f"Verdict: {audit.verdict}", class_="label"),
        tag("p", summary[:1].upper() + summary[1:]),
        tag("ul", *(tag("li", reason) for reason in audit.reasons), class_="muted"),
        class_=f"verdict {verdict_level(audit.verdict)}",
    )
