"""The HTML document around every page, and the elements that all pages share."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from saddlepoint import phrases
from saddlepoint.atomic import write_atomic
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.style import CSS

# A page loads nothing from the network and runs no script except the one passed to `document`,
# whatever text a name on the page contains.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)


def document(title: str, body: Markup, *, script: Markup | None = None, refresh: str = "") -> str:
    """Return a complete HTML document.

    Args:
        title: Title of the browser window.
        body: Content of the body.
        script: JavaScript to run, a constant of this package. The content security policy allows
            it by its hash. Default: none.
        refresh: Content of the `refresh` meta element: seconds, or seconds and a URL. Default: the
            page does not reload.
    """
    policy = content_policy(script)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        *([tag("meta", http_equiv="refresh", content=refresh)] if refresh else []),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),  # else the browser requests one from the server
        tag("title", title),
        tag("style", Markup(CSS)),
    )
    scripts = [tag("script", script)] if script else []
    return "<!doctype html>\n" + tag("html", head, tag("body", body, *scripts), lang="en")


def content_policy(script: Markup | None = None) -> str:
    """The content security policy of a page: no network, and no script but this one."""
    if script is None:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'"


def save_page(path: Path, html: str) -> Path:
    """Write a page atomically, create its folder if needed, and return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, html.encode())
    return path


def muted(text: str) -> Markup:
    """Return a paragraph of explanation in a muted color."""
    return tag("p", text, class_="muted")


def legend(**meanings: str) -> Markup:
    """Explain the colors of a figure: `legend(primary="clean accuracy")`.

    Args:
        meanings: Text by color. The colors are those of the figures: primary, secondary, marker,
            whisker, band.
    """
    return tag(
        "div",
        *(tag("span", text, class_=f"swatch-{color}") for color, text in meanings.items()),
        class_="legend muted",
    )


def table(
    head: Sequence[str], lines: Iterable[Sequence[str]], *, class_: str = "numeric"
) -> Markup:
    """Return a table. The first cell of each line is the heading of that row.

    Args:
        head: Titles of the columns.
        lines: The cells of each row.
        class_: `numeric` for columns of numbers, `words` for columns of sentences, which wrap.
    """
    # On small screens every cell is a line of its own, after the title of its column.
    rows = (
        tag(
            "tr",
            tag("th", first, scope="row"),
            *(
                tag("td", cell, data_label=title)
                for cell, title in zip(rest, head[1:], strict=True)
            ),
        )
        for first, *rest in lines
    )
    titles = (tag("th", cell, scope="col") for cell in head)
    content = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *rows), class_=class_)
    # An element with keyboard focus can be scrolled by the arrow keys.
    return tag("div", content, class_="card scroll", tabindex=0, role="region", aria_label=head[0])


def facts(values: dict[str, str]) -> Markup:
    """Return a table of two columns: names and values."""
    rows = (
        tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in values.items()
    )
    return tag("div", tag("table", tag("tbody", *rows), class_="facts"), class_="card scroll")


def number_cards(cards: Iterable[tuple[str, str, str]], *, class_: str = "numbers") -> Markup:
    """Return a row of cards, each with a name, a large number and an explanation.

    Args:
        cards: Name, number and explanation of each card.
        class_: CSS classes of the row.
    """
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("span", name),
                tag("b", number),
                tag("span", explanation, class_="muted"),
                class_="card",
            )
            for name, number, explanation in cards
        ),
        class_=class_,
    )


def collapsible(title: str, *parts: Markup) -> Markup:
    """Return content that is hidden until the reader clicks its title."""
    return tag("details", tag("summary", title), *parts)


def percent(share: float) -> str:
    """Return a share in [0, 1] as a percentage: `79.0 %`, `0 %`, `< 0.1 %`."""
    return phrases.percent_cell(share)


def at_most(share: float) -> str:
    """Return a share in [0, 1] as an upper bound: `≤ 79.0 %`."""
    return phrases.at_most(share)


def at_least(share: float) -> str:
    """Return a share in [0, 1] as a lower bound: `≥ 20.0 %`."""
    return phrases.at_least(share)


def percent_range(low: float, high: float) -> str:
    """Return an interval of shares: `70.1 – 81.5 %`."""
    return phrases.percent_range(low, high, " – ")
