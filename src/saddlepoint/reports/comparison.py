"""Several audits side by side: a leaderboard that can be sorted, each line a link to its own page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from saddlepoint.audits.result import Audit, Verdict
from saddlepoint.audits.statistics import Interval
from saddlepoint.reports.document import between, document, key, percent, put, quiet
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, join, tag
from saddlepoint.reports.published import NOTHING, Published

_RANK: tuple[Verdict, ...] = ("holds so far", "overstated", "cannot be told")


@dataclass(frozen=True)
class Line:
    """What the leaderboard says about an audit: numbers only, so that many fit into memory."""

    name: str  # of the run
    target: str
    address: str  # of its report, relative to the leaderboard
    threat: str
    data: str
    n: int
    clean: float
    ours: float
    interval: Interval
    verdict: Verdict
    passes: float  # forward and backward, per image
    seconds: float
    published: Published = NOTHING

    @classmethod
    def of(cls, audit: Audit, address: str, published: Published = NOTHING) -> Line:
        passes = float((audit.examples.forward + audit.examples.backward).double().mean())
        threat = audit.threat.partition(",")[0]
        data = audit.data or "given images"
        numbers = (
            audit.n,
            audit.clean_accuracy,
            audit.robust_accuracy,
            audit.interval,
            audit.verdict,
            passes,
            audit.seconds,
        )
        name = address.removesuffix("/report.html")
        return cls(name, audit.target, address, threat, data, *numbers, published)


def write(audits: Sequence[tuple[Audit, str]], path: Path) -> Path:
    """Write a page that compares audits; each comes with the address of its report, relative to this page."""
    return write_lines([Line.of(audit, address) for audit, address in audits], path)


def write_lines(lines: Sequence[Line], path: Path) -> Path:
    """Write the leaderboard of these lines."""
    return put(path, document("saddlepoint: audits side by side", _body(lines), script=_SCRIPT))


def _body(lines: Sequence[Line]) -> Markup:
    # A number that cannot be trusted leads nothing, however high it is.
    ranked = sorted(lines, key=lambda line: (_RANK.index(line.verdict), -line.ours, line.target))
    settings = sorted({f"{line.threat}, {line.data}" for line in lines})
    mixed = (
        "" if len(settings) == 1 else " Lines with another threat or other data are not comparable."
    )
    twice = {
        line.target for line in lines if sum(other.target == line.target for other in lines) > 1
    }
    labels = [line.name if line.target in twice else line.target for line in ranked]
    rows = [
        Bar(
            label,
            line.ours,
            max(line.clean - line.ours, 0.0),
            percent(line.ours),
            line.published.claimed,
            line.interval[:2],
        )
        for label, line in zip(labels, ranked, strict=True)
    ]
    claimed = (
        {"alone": "claimed"} if any(line.published.claimed is not None for line in lines) else {}
    )
    legend = key(
        kept="left after every attack",
        lost="taken by the attacks",
        **claimed,
        whisker="95 % interval over images",
    )
    return tag(
        "main",
        tag("p", "saddlepoint", class_="brand"),
        tag("h1", "Audits side by side"),
        tag("p", "; ".join(settings), class_="quiet"),
        tag("h2", "Leaderboard"),
        _table(ranked, bool(mixed)),
        tag(
            "p",
            "What can be told comes first, then the higher number. Click a title to sort.",
            class_="quiet",
            role="status",
        ),
        quiet(
            "Every number is an upper bound: no attack proves that none is stronger. Intervals cover which images were drawn, not "
            f"attacks that were not tried. Passes are forward and backward, per image.{mixed}"
        ),
        tag("h2", "Robust accuracy, at most"),
        tag("div", legend, bars(rows, title="Robust accuracy"), class_="card"),
        class_="wide",
    )


@dataclass(frozen=True)
class _Column:
    """A title, what is shown, and what is sorted by: a number, a text, or nothing, which goes last."""

    title: str
    shown: Callable[[Line], Markup]
    value: Callable[[Line], float | str | None]
    words: bool = False


def _share(title: str, value: Callable[[Line], float | None]) -> _Column:
    return _Column(
        title, lambda line: join("–" if (share := value(line)) is None else percent(share)), value
    )


def _target(mixed: bool) -> _Column:
    def shown(line: Line) -> Markup:
        settings = [tag("small", f"{line.threat}, {line.data}")] if mixed else []
        return join(tag("a", line.target, href=line.address), tag("small", line.name), *settings)

    return _Column("target", shown, lambda line: line.target, words=True)


def _ours(line: Line) -> Markup:
    return join(
        tag("b", percent(line.ours)), tag("small", between(line.interval.low, line.interval.high))
    )


def _verdict(line: Line) -> Markup:
    level, shape = ("note", "●") if line.verdict == "holds so far" else ("serious", "■")
    return tag(
        "span", tag("span", f"{shape} ", aria_hidden="true"), line.verdict, class_=f"badge {level}"
    )


_COLUMNS = (
    _share("clean", lambda line: line.clean),
    _share("claimed", lambda line: line.published.claimed),
    _share("static", lambda line: line.published.static),
    _share("AutoAttack", lambda line: line.published.autoattack),
    _Column("ours, at most", _ours, lambda line: line.ours),
    _Column("verdict", _verdict, lambda line: line.verdict, words=True),
    _Column("images", lambda line: join(f"{line.n:,}"), lambda line: line.n),
    _Column("passes", lambda line: join(f"{line.passes:,.0f}"), lambda line: line.passes),
    _Column("seconds", lambda line: join(f"{line.seconds:,.0f}"), lambda line: line.seconds),
)


def _table(lines: Sequence[Line], mixed: bool) -> Markup:
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
    drawn = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="leaders")
    return tag(
        "div", drawn, class_="card scroll", tabindex=0, role="region", aria_label="Leaderboard"
    )


def _cell(column: _Column, line: Line, *, first: bool) -> Markup:
    value = column.value(line)
    text = "" if value is None else value if isinstance(value, str) else repr(float(value))
    style = "words" if column.words else "number"
    return tag(
        "th" if first else "td",
        column.shown(line),
        data_value=text,
        class_=style,
        **({"scope": "row"} if first else {}),
    )


# Sorting is all that runs. Numbers begin with the highest, words with the first; what is not known stays last.
_SCRIPT = Markup("""
for (const table of document.querySelectorAll("table.leaders")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const status = document.querySelector("[role=status]");
  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const words = head.classList.contains("words"), before = head.getAttribute("aria-sort");
    const upward = before ? before === "descending" : words;
    const value = (row) => row.cells[column].dataset.value;
    const compare = (a, b) => words ? a.localeCompare(b, undefined, {numeric: true}) : Number(a) - Number(b);
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return upward ? compare(x, y) : compare(y, x);
    });
    body.append(...rows);
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", upward ? "ascending" : "descending");
    status.textContent = `Sorted by ${head.textContent}, ${upward ? "ascending" : "descending"}.`;
  }));
}
""")
