"""The page of `saddlepoint demo`: a chart, a table, and one sentence per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from saddlepoint.audits.verdict import Verdict
from saddlepoint.cli.demo_run import RADIUS, DemoResult, Effort
from saddlepoint.phrases import signed_points
from saddlepoint.reports.document import (
    at_most,
    document,
    legend,
    muted,
    percent,
    save_page,
    table,
)
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.verdicts import SHAPES, verdict_level


def head(effort: Effort) -> list[str]:
    """The first line of the table, on the page and in the terminal."""
    return [
        "model",
        "images",
        "clean",
        "authors' evaluation",
        f"{effort.suite} (our implementation)",
        "saddlepoint",
        "verdict",
    ]


def cells(result: DemoResult) -> list[str]:
    """One line of the table, on the page and in the terminal."""
    return [
        result.title,
        str(result.images),
        percent(result.clean),
        percent(result.authors),
        percent(result.autoattack),
        at_most(result.robust),
        result.verdict,
    ]


def write_page(results: Sequence[DemoResult], path: Path, effort: Effort) -> Path:
    """Write the page.

    Args:
        results: one per model; the report of each is in a folder of its name beside the page.
        path: the HTML file.
        effort: of AutoAttack.
    """
    return save_page(path, document("saddlepoint demo", _body(results, effort)))


def _body(results: Sequence[DemoResult], effort: Effort) -> Markup:
    return tag(
        "main",
        tag("p", "saddlepoint demo", class_="brand"),
        tag("h1", f"Four defenses: the evaluation of their authors, {effort.suite}, and an audit"),
        muted(
            f"Test digits, Linf radius {RADIUS:g}. Each line is one model under three evaluations."
        ),
        tag("h2", "Robust accuracy"),
        _figure(results, effort),
        tag("h2", "Three evaluations"),
        table(head(effort), [cells(result) for result in results]),
        muted(
            f"The {effort.suite} is the standard suite, or the rand suite for the randomized "
            f"defense, built from the attacks of this package ({effort}). All numbers are upper "
            "bounds of robust accuracy."
        ),
        tag("h2", "Why"),
        *(_card(result) for result in results),
    )


def _figure(results: Sequence[DemoResult], effort: Effort) -> Markup:
    rows = [
        Bar(
            result.title,
            result.robust,
            max(result.lost, 0.0),
            at_most(result.robust),
            marker=result.autoattack,
            interval=result.interval,
        )
        for result in results
    ]
    key = legend(
        primary="saddlepoint",
        secondary="only in the authors' evaluation",
        marker=effort.suite,
        whisker="95 % interval over images",
    )
    return tag("div", key, bars(rows, title="Robust accuracy"), class_="card")


def _card(result: DemoResult) -> Markup:
    level = verdict_level(Verdict(result.verdict))
    shape = tag("span", f"{SHAPES[level]} ", aria_hidden="true")
    return tag(
        "div",
        tag("h3", result.title, " ", tag("span", shape, result.verdict, class_=f"badge {level}")),
        tag("p", f"Authors' evaluation: {result.mistake}"),
        tag("p", result.why),
        tag(
            "p",
            f"{signed_points(result.robust - result.authors)} against the authors' evaluation. ",
            tag("a", "Full report", href=f"{result.name}/report.html"),
            class_="muted",
        ),
        class_="card",
    )
