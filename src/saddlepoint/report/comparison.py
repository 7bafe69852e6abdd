"""Several audits side by side, each a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from saddlepoint.auditing.result import Audit
from saddlepoint.report.figures import Bar, bars
from saddlepoint.report.html import document, key, percent
from saddlepoint.report.markup import Markup, tag


def write(audits: Sequence[tuple[Audit, str]], path: Path) -> Path:
    """Write a page that compares audits; each comes with the address of its report, relative to this page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document("saddlepoint: audits side by side", _body(audits)), encoding="utf-8")
    return path


def _body(audits: Sequence[tuple[Audit, str]]) -> Markup:
    rows = [
        Bar(
            a.target,
            a.robust_accuracy,
            max(a.clean_accuracy - a.robust_accuracy, 0.0),
            percent(a.robust_accuracy),
            None,
            a.interval[:2],
        )
        for a, _ in audits
    ]
    threats = sorted({audit.threat for audit, _ in audits})
    return tag(
        "main",
        tag("p", "saddlepoint", class_="brand"),
        tag("h1", "Audits side by side"),
        *(tag("p", threat, class_="quiet") for threat in threats),
        tag("h2", "Robust accuracy, at most"),
        tag(
            "div",
            key(kept="left after every attack", lost="taken by the attacks"),
            bars(rows, title="Robust accuracy"),
            class_="card",
        ),
        tag("p", "Whiskers cover which images were drawn, not attacks that were not tried.", class_="quiet"),
        tag("h2", "Audits"),
        tag("div", _table(audits), class_="card scroll"),
    )


def _table(audits: Sequence[tuple[Audit, str]]) -> Markup:
    head = ("target", "verdict", "clean", "robust, at most", "interval", "images")
    lines = (
        tag(
            "tr",
            tag("th", tag("a", audit.target, href=address), scope="row"),
            *(tag("td", cell) for cell in (audit.verdict, percent(audit.clean_accuracy), percent(audit.robust_accuracy))),
            tag("td", str(audit.interval)),
            tag("td", str(audit.n)),
        )
        for audit, address in audits
    )
    return tag("table", tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))), tag("tbody", *lines))
