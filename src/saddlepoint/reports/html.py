"""The report of an audit: one HTML page that needs no network.

The first screen has the verdict, the numbers, the accuracy by radius and by attack, and the cost.
Warnings and the checklist follow, then details, most of which are folded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.audits.result import Audit
from saddlepoint.phrases import count
from saddlepoint.reports.context import ReportContext, Section, SectionWriter
from saddlepoint.reports.document import collapsible, document, save_page
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.sections import CHARTS, COST, NUMBERS, SECTIONS
from saddlepoint.reports.verdicts import verdict_level
from saddlepoint.runs.manifest import refresh

REPORT = "report.html"  # name of the report in a run folder
_REASONS = 3  # shown in the verdict box; more are folded


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
    charts = _written(CHARTS, context)
    cost = _written(COST, context)
    sections = _written(SECTIONS, context)
    numbers = _written(NUMBERS, context)
    back = [tag("p", tag("a", "← All runs", href=context.index_url), class_="brand")]
    body = tag(
        "main",
        *(back if context.index_url else []),
        tag("p", "saddlepoint audit", class_="brand"),
        tag("h1", audit.target),
        tag("p", audit.threat, class_="muted"),
        _verdict(audit),
        *map(section_element, numbers),
        tag("div", *map(section_element, charts), class_="pair" if len(charts) == 2 else False),
        *map(section_element, cost),
        contents([*numbers, *charts, *cost, *sections]),
        *map(section_element, sections),
        footer(audit.versions.get("saddlepoint", "")),
    )
    return document(f"{audit.target}: {audit.verdict}", body)


def section_element(section: Section) -> Markup:
    """Return a section with its heading and the anchor that `contents` links to.

    The anchor of a folded section is inside of it: a browser unfolds what a link leads to.
    """
    heading = tag("h2", section.title)
    anchor = _anchor(section.title)
    if not section.folded:
        return tag("section", heading, *section.body, id=anchor)
    body = tag("div", *section.body, id=anchor, class_="unfolded")
    return tag("section", tag("details", tag("summary", heading), body), class_="folded")


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


def _written(writers: Sequence[SectionWriter], context: ReportContext) -> list[Section]:
    return [section for write in writers if (section := write(context)) is not None]


def _verdict(audit: Audit) -> Markup:
    estimate = audit.estimate()
    return tag(
        "div",
        tag("span", f"Verdict: {audit.verdict}", class_="label"),
        tag("p", estimate[:1].upper() + estimate[1:]),
        *_reasons(audit.reasons),
        class_=f"verdict {verdict_level(audit.verdict)}",
    )


def _reasons(reasons: Sequence[str]) -> list[Markup]:
    further = reasons[_REASONS:]
    folded = [collapsible(count(len(further), "further reason"), _bullets(further))]
    return [_bullets(reasons[:_REASONS]), *(folded if further else [])]


def _bullets(reasons: Sequence[str]) -> Markup:
    return tag("ul", *(tag("li", reason) for reason in reasons), class_="muted")
