"""The frame of every page, and the few pieces that all pages share."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.style import CSS

# A page fetches nothing and runs nothing but the one script of ours it is made with, whatever a name in it says.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def document(title: str, body: Markup, *, script: Markup | None = None, refresh: str = "") -> str:
    """A whole page. `script` is a constant of ours, allowed by its hash; `refresh` is seconds, or seconds and an address."""
    digest = base64.b64encode(hashlib.sha256((script or "").encode()).digest()).decode()
    policy = f"{_POLICY}; script-src 'sha256-{digest}'" if script else _POLICY
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        *([tag("meta", http_equiv="refresh", content=refresh)] if refresh else []),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),  # or a browser asks the server for one
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    running = [tag("script", script)] if script else []
    return "<!doctype html>\n" + tag("html", head, tag("body", body, *running), lang="en")


def put(path: Path, text: str) -> Path:
    """Write the file whole or not at all: whoever has it open sees the old page or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def quiet(text: str) -> Markup:
    """A remark."""
    return tag("p", text, class_="quiet")


def key(**meanings: str) -> Markup:
    """What colors mean: `key(kept="accuracy left")`; the colors are those of the figures."""
    return tag(
        "div",
        *(tag("span", text, class_=f"swatch-{color}") for color, text in meanings.items()),
        class_="key quiet",
    )


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Markup:
    """A table whose first column names the rows."""
    rows = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in lines
    )
    titles = (tag("th", cell, scope="col") for cell in head)
    drawn = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *rows))
    return tag(
        "div", drawn, class_="card scroll", tabindex=0, role="region", aria_label=head[0]
    )  # focus lets keys scroll it


def facts(lines: dict[str, str]) -> Markup:
    """Names and values."""
    rows = (
        tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in lines.items()
    )
    return tag("div", tag("table", tag("tbody", *rows), class_="facts"), class_="card scroll")


def folded(title: str, *parts: Markup) -> Markup:
    """What not every reader wants to see, one click away."""
    return tag("details", tag("summary", title), *parts)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def between(low: float, high: float) -> str:
    return f"{100 * low:.1f} – {100 * high:.1f} %"
