"""A leaderboard of several audits that sorts by any column and links to their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from saddlepoint.audits.result import Audit, Verdict
from saddlepoint.audits.statistics import Interval
from saddlepoint.reports.document import (
    at_most,
    document,
    legend,
    muted,
    percent,
    percent_range,
    save_page,
)
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, join, tag
from saddlepoint.reports.published import NO_RESULTS, Published
from saddlepoint.reports.sorting import SORT_SCRIPT
from saddlepoint.reports.threats import read_space
from saddlepoint.reports.verdicts import SHAPES, VERDICTS, verdict_level


@dataclass(frozen=True)
class Line:
    """One line of the leaderboard. It contains no tensors, so that many fit into memory."""

    name: str  # of the run
    target: str
    url: str  # of its report, relative to the leaderboard
    threat: str
    data: str
    n: int  # images
    clean: float
    robust: float
    interval: Interval
    verdict: Verdict
    passes: float  # forward and backward, per image
    seconds: float
    published: Published = NO_RESULTS

    @classmethod
    def of(cls, audit: Audit, url: str, published: Published = NO_RESULTS) -> Line:
        """Return the line of an audit.

        Args:
            audit: The audit.
            url: URL of its report, relative to the leaderboard.
            published: Published results for the same target. Default: none.
        """
        space = read_space(audit.threat_description)
        passes = audit.examples.forward + audit.examples.backward
        return cls(
            name=url.removesuffix("/report.html"),
            target=audit.target,
            url=url,
            threat=str(space) if space else audit.threat,
            data=audit.data or "unnamed tensors",
            n=audit.n,
            clean=audit.clean_accuracy,
            robust=audit.robust_accuracy,
            interval=audit.interval,
            verdict=audit.verdict,
            passes=float(passes.double().mean()),
            seconds=audit.seconds,
            published=published,
        )

    @property
    def setting(self) -> str:
        """Threat and data: lines with different settings are not comparable."""
        return f"{self.threat}, {self.data}"


def write_leaderboard(audits: Sequence[tuple[Audit, str]], path: Path) -> Path:
    """Write the leaderboard of several audits.

    Args:
        audits: Each audit with the URL of its report, relative to the leaderboard.
        path: The HTML file to write.

    Returns:
        `path`.
    """
    return write_lines([Line.of(audit, url) for audit, url in audits], path)


def write_lines(lines: Sequence[Line], path: Path) -> Path:
    """Write the leaderboard of these lines to `path` and return `path`."""
    return save_page(path, document("saddlepoint leaderboard", _body(lines), script=SORT_SCRIPT))


def _body(lines: Sequence[Line]) -> Markup:
    # Rank by verdict first: a number that is not credible does not lead, however high it is.
    ranked = sorted(
        lines, key=lambda line: (VERDICTS.index(line.verdict), -line.robust, line.target)
    )
    settings = sorted({line.setting for line in lines})
    mixed = len(settings) > 1
    warning = " Lines with different threats or data are not comparable." if mixed else ""
    return tag(
        "main",
        tag("p", "saddlepoint", class_="brand"),
        tag("h1", "Comparison of audits"),
        tag("p", "; ".join(settings), class_="muted"),
        tag("h2", "Leaderboard"),
        _table(ranked, mixed),
        tag(
            "p",
            f"Sorted by verdict ({', '.join(VERDICTS)}), then by robust accuracy. Click a column "
            "title to sort by it.",
            class_="muted",
            role="status",
        ),
        muted(
            "Robust accuracies are upper bounds: a stronger attack can only lower them. Intervals "
            "cover which images were drawn, not attacks that were not run. Passes are forward and "
            f"backward passes per image.{warning}"
        ),
        tag("h2", "Robust accuracy"),
        _figure(ranked),
        class_="wide",
    )


def _figure(lines: Sequence[Line]) -> Markup:
    targets = [line.target for line in lines]
    rows = [
        Bar(
            line.name if targets.count(line.target) > 1 else line.target,
            line.robust,
            max(line.clean - line.robust, 0.0),
            at_most(line.robust),
            line.published.claimed,
            line.interval[:2],
        )
        for line in lines
    ]
    claimed = any(line.published.claimed is not None for line in lines)
    key = legend(
        primary="robust accuracy (upper bound)",
        secondary="broken by the attacks",
        **({"marker": "claimed robust accuracy"} if claimed else {}),
        whisker="95 % interval over images",
    )
    return tag("div", key, bars(rows, title="Robust accuracy"), class_="card")


@dataclass(frozen=True)
class _Column:
    """One column of the leaderboard."""

    title: str
    content: Callable[[Line], Markup]  # of a cell
    value: Callable[[Line], float | str | None]  # to sort by; None is always last
    words: bool = False  # values are texts, not numbers


def _accuracy(title: str, value: Callable[[Line], float | None]) -> _Column:
    def content(line: Line) -> Markup:
        share = value(line)
        return join("–" if share is None else percent(share))

    return _Column(title, content, value)


def _target(mixed: bool) -> _Column:
    def content(line: Line) -> Markup:
        setting = [tag("small", line.setting)] if mixed else []
        return join(tag("a", line.target, href=line.url), tag("small", line.name), *setting)

    return _Column("target", content, lambda line: line.target, words=True)


def _robust(line: Line) -> Markup:
    interval = percent_range(line.interval.low, line.interval.high)
    return join(tag("b", at_most(line.robust)), tag("small", interval))


def _verdict(line: Line) -> Markup:
    level = verdict_level(line.verdict)
    shape = tag("span", f"{SHAPES[level]} ", aria_hidden="true")
    return tag("span", shape, line.verdict, class_=f"badge {level}")


_COLUMNS = (
    _accuracy("clean accuracy", lambda line: line.clean),
    _accuracy("claimed", lambda line: line.published.claimed),
    _accuracy("static model", lambda line: line.published.static),
    _accuracy("AutoAttack", lambda line: line.published.autoattack),
    _Column("robust accuracy", _robust, lambda line: line.robust),
    _Column("verdict", _verdict, lambda line: line.verdict, words=True),
    _Column("images", lambda line: join(f"{line.n:,}"), lambda line: line.n),
    _Column("passes", lambda line: join(f"{line.passes:,.0f}"), lambda line: line.passes),
    _Column("seconds", lambda line: join(f"{line.seconds:,.0f}"), lambda line: line.seconds),
)


def _table(lines: Sequence[Line], mixed: bool) -> Markup:
    """Return the table, without columns that have no values."""
    columns = [
        column
        for column in (_target(mixed), *_COLUMNS)
        if any(column.value(line) is not None for line in lines)
    ]
    head = (
        tag(
            "th",
            tag("button", column.title, type="button"),
            scope="col",
            class_="words" if column.words else "number",
        )
        for column in columns
    )
    body = (
        tag("tr", *(_cell(column, line, first=k == 0) for k, column in enumerate(columns)))
        for line in lines
    )
    content = tag(
        "table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="leaderboard"
    )
    return tag(
        "div", content, class_="card scroll", tabindex=0, role="region", aria_label="Leaderboard"
    )


def _cell(column: _Column, line: Line, *, first: bool) -> Markup:
    return tag(
        "th" if first else "td",
        column.content(line),
        data_value=_sort_value(column.value(line)),
        class_="words" if column.words else "number",
        **({"scope": "row"} if first else {}),
    )


def _sort_value(value: float | str | None) -> str:
    """Return the text that the script sorts by; it is empty for missing values."""
    if value is None:
        return ""
    return value if isinstance(value, str) else repr(float(value))
