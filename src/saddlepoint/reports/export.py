"""Export an audit as text for other programs: CSV, JSON, a LaTeX table, a model card.

Every export names its run by the hash that is also in the record, so that it can be verified.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from saddlepoint import phrases
from saddlepoint.audits.result import Audit
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.phrases import count
from saddlepoint.reports.document import at_least, at_most, percent

# A spreadsheet evaluates a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+!|~&$-])")
_ATTACK_COLUMNS = (
    "name",
    "robust_accuracy",
    "low",
    "high",
    "running",
    "gain",
    "attacked",
    "forward",
    "backward",
    "seconds",
    "copies",
)


def examples_csv(audit: Audit) -> str:
    """Return CSV with one line per image: winning attack, perturbation size, prediction, cost."""
    columns = {**example_columns(audit), "run": [audit.run] * audit.n}
    return as_csv(list(columns), zip(*columns.values(), strict=True))


def attacks_csv(audit: Audit) -> str:
    """Return CSV with one line per attack, in the order in which they ran.

    `low` and `high` are the Wilson score interval of the accuracy under the attack.
    """
    head = (*_ATTACK_COLUMNS, "run")
    lines = ({**line, "run": audit.run} for line in attack_lines(audit))
    return as_csv(head, ([line[name] for name in head] for line in lines))


def as_json(audit: Audit) -> str:
    """Return the record as JSON, with an interval per attack and one column per image property.

    Numbers that are not finite are null.
    """
    record = audit.record()
    del record["winner"]  # columns of `examples`
    del record["draws"]
    everything = {**record, "rows": attack_lines(audit), "examples": example_columns(audit)}
    return json.dumps(_finite(everything), indent=1, allow_nan=False) + "\n"


def latex(audit: Audit) -> str:
    r"""Return a LaTeX `tabular` that needs no package.

    Put it into a `table` with your own caption. For booktabs, replace the `\hline`s.
    """
    clean = audit.clean_accuracy
    robust = audit.robust_accuracy
    forward = _mean(audit.examples.forward)
    backward = _mean(audit.examples.backward)
    rows = [
        _latex_line(
            row.name,
            row.robust_accuracy,
            wilson(row.robust_accuracy, audit.n),
            row.running,
            (f"{row.forward:.1f}", f"{row.backward:.1f}"),
        )
        for row in audit.rows
    ]
    return "\n".join(
        [
            f"% {_one_line(audit.target)}: {_one_line(audit.threat)}",
            f"% {count(audit.n, 'image')}, seed {audit.seed}, verdict: {audit.verdict}.",
            *([f"% run {audit.run}"] if audit.run else []),
            "% Accuracy in percent; robust accuracies are upper bounds. Passes per image.",
            r"\begin{tabular}{lrrrrr}",
            r"\hline",
            r"attack & accuracy & 95\,\% interval & worst case & forward & backward \\",
            r"\hline",
            _latex_line("clean", clean, wilson(clean, audit.n), clean, ("", "")),
            *rows,
            r"\hline",
            _latex_line("all, re-evaluated", robust, audit.interval, robust, (forward, backward)),
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def model_card(audit: Audit) -> str:
    """Return a section for a model card in Markdown: robust accuracy, verdict and warnings."""
    covers = markdown(audit.interval.covers)
    lines = [
        "## Adversarial robustness",
        "",
        f"| {markdown(audit.target)} | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _card_rows(audit)),
        "",
        "Robust accuracy is an upper bound: a stronger attack can only lower it. The interval",
        f"covers {covers}, not attacks that were not run.",
        "",
        "Reasons for the verdict:",
        "",
        *(f"- {markdown(reason)}" for reason in audit.reasons),
        *_card_warnings(audit),
        "",
        f"Measured with saddlepoint {markdown(audit.versions.get('saddlepoint', ''))}, budget "
        f"{markdown(audit.budget)}, seed {audit.seed}.",
    ]
    if audit.run:
        lines += ["", f"Run {audit.run}."]
    if audit.command:
        lines += ["", _code_block(audit.command)]
    return "\n".join([*lines, ""])


def _card_rows(audit: Audit) -> Iterator[tuple[str, str]]:
    level = phrases.percent(audit.interval.level, 0)
    yield "threat", markdown(audit.threat)
    yield "data", f"{markdown(audit.data or 'unnamed tensors')}, {count(audit.n, 'image')}"
    yield "clean accuracy", percent(audit.clean_accuracy)
    robust = at_most(audit.robust_accuracy)
    yield "robust accuracy (upper bound)", f"{robust} ({audit.interval}, {level} interval)"
    yield "verdict", audit.verdict
    if audit.compared.claim is not None:
        yield "claimed robust accuracy", percent(audit.compared.claim)
    if (certified := audit.compared.proven) is not None:
        bound = f"{at_least(certified.accuracy)}, certified by {markdown(certified.method)}"
        yield "certified robust accuracy (lower bound)", bound
    yield "attacks", ", ".join(markdown(row.name) for row in audit.rows)
    forward = _mean(audit.examples.forward)
    backward = _mean(audit.examples.backward)
    yield "cost", f"{forward} forward and {backward} backward passes per image"


def _card_warnings(audit: Audit) -> list[str]:
    if not audit.symptoms:
        return []
    warnings = (
        f"- **{symptom.level}: {markdown(symptom.name)}.** {markdown(symptom.message)}"
        for symptom in audit.symptoms
    )
    return ["", "Warnings:", "", *warnings]


def example_columns(audit: Audit) -> dict[str, list[Any]]:
    """Return the properties of the images, one list of length N per column."""
    examples = audit.examples
    return {
        "example": list(range(audit.n)),
        "label": _list(audit.y),
        "winner": list(examples.winner),
        "correct": _list(audit.correct),  # share of draws
        "answered": _list(audit.answered),
        "margin": _list(examples.margin),
        "size": _list(examples.size),
        "smallest": _list(examples.smallest) or [math.nan] * audit.n,
        "forward": _list(examples.forward),
        "backward": _list(examples.backward),
        "draws": [examples.draws] * audit.n,
        "verified": _list(examples.verified),
    }


def attack_lines(audit: Audit) -> list[dict[str, Any]]:
    """Return the attacks as in the record, each with the interval of its accuracy."""
    lines = []
    for row, line in zip(audit.rows, audit.record()["rows"], strict=True):
        interval = wilson(row.robust_accuracy, audit.n)
        lines.append({**line, "low": interval.low, "high": interval.high})
    return lines


def as_csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return CSV according to RFC 4180.

    Text that a spreadsheet would evaluate as a formula gets a leading apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_without_formula(cell) for cell in line] for line in lines)
    return text.getvalue()


def _without_formula(cell: Any) -> Any:
    if isinstance(cell, bool):
        return int(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, at any depth."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _list(values: Tensor) -> list[Any]:
    numbers: list[Any] = values.detach().cpu().tolist()
    return numbers


def _mean(values: Tensor) -> str:
    return f"{float(values.double().mean()):.1f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _latex_text(text: str) -> str:
    """Escape characters that are special in LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def _latex_line(
    name: str, accuracy: float, interval: Interval, worst_case: float, passes: tuple[str, str]
) -> str:
    cells = (
        _latex_text(name),
        f"{100 * accuracy:.1f}",
        f"{100 * interval.low:.1f}--{100 * interval.high:.1f}",
        f"{100 * worst_case:.1f}",
        *passes,
    )
    return " & ".join(cells) + r" \\"


def markdown(text: str) -> str:
    """Escape characters that are special in Markdown."""
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _code_block(text: str) -> str:
    """Return a code block; its fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, 1 + longest)
    return f"{fence}\n{_one_line(text)}\n{fence}"
