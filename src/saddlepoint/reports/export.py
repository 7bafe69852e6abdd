"""An audit for other programs and other pages: CSV, JSON, a LaTeX table, a model card. Audit -> text, nothing else."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from saddlepoint.audits.result import Audit
from saddlepoint.audits.statistics import Interval, wilson
from saddlepoint.audits.verdict import CertifiedBound

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+!|~&$-])")


def examples_csv(audit: Audit) -> str:
    """One line per example: who won, the size of the perturbation, how it was answered, what it cost."""
    columns = ledger(audit)
    return as_csv(list(columns), zip(*columns.values(), strict=True))


def rows_csv(audit: Audit) -> str:
    """One line per attack, in the order in which they were sent, with Wilson's interval for the accuracy against it."""
    lines = attack_lines(audit)
    head = [
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
    ]
    return as_csv(head, ([line[name] for name in head] for line in lines))


def as_json(audit: Audit) -> str:
    """The record, with an interval per attack and the ledger by column; what is not a number is null."""
    record = audit.record()
    del record["winner"], record["draws"]  # they are columns of the ledger
    return (
        json.dumps(
            _finite({**record, "rows": attack_lines(audit), "examples": ledger(audit)}),
            indent=1,
            allow_nan=False,
        )
        + "\n"
    )


def latex(audit: Audit) -> str:
    r"""A `tabular` that needs no package: put it into a `table` with a caption of your own. For booktabs replace the `\hline`s."""
    clean = audit.clean_accuracy
    robust = audit.robust_accuracy
    forward = _mean(audit.examples.forward)
    backward = _mean(audit.examples.backward)
    body = [_tex_line("clean", clean, wilson(clean, audit.n), clean, "", "")]
    for row in audit.rows:
        interval = wilson(row.robust_accuracy, audit.n)
        passes = f"{row.forward:.1f}", f"{row.backward:.1f}"
        body.append(_tex_line(row.name, row.robust_accuracy, interval, row.running, *passes))
    return "\n".join(
        [
            f"% {_one_line(audit.target)}: {_one_line(audit.threat)}",
            f"% {audit.n} images, seed {audit.seed}, verdict: {audit.verdict}. Accuracy in percent, at most; passes per image.",
            r"\begin{tabular}{lrrrrr}",
            r"\hline",
            r"attack & accuracy & 95\,\% interval & worst case & forward & backward \\",
            r"\hline",
            *body,
            r"\hline",
            _tex_line("all, judged afresh", robust, audit.interval, robust, forward, backward),
            r"\hline",
            r"\end{tabular}",
            "",
        ]
    )


def model_card(audit: Audit) -> str:
    """A section for a model card, in Markdown: the number with what it means and what speaks against it."""
    interval = audit.interval
    level = f"{100 * audit.interval.level:.0f} %"
    lines = [
        "## Adversarial robustness",
        "",
        f"| {_md(audit.target)} | |",
        "|---|---|",
        f"| threat | {_md(audit.threat)} |",
        f"| data | {_md(audit.data or 'given by the caller')}, {audit.n} images |",
        f"| clean accuracy | {100 * audit.clean_accuracy:.1f} % |",
        f"| robust accuracy, at most | {100 * audit.robust_accuracy:.1f} % ({interval}, {level} interval) |",
        f"| verdict | {audit.verdict} |",
        *(
            [f"| claimed | {100 * audit.compared.claim:.1f} % |"]
            if audit.compared.claim is not None
            else []
        ),
        *(
            [f"| robust accuracy, at least | {_at_least(audit.compared.proven)} |"]
            if audit.compared.proven is not None
            else []
        ),
        f"| attacks | {', '.join(_md(row.name) for row in audit.rows)} |",
        f"| cost | {_mean(audit.examples.forward)} forward and {_mean(audit.examples.backward)} backward passes per image |",
        "",
        f"The number is an upper bound: a stronger attack can only lower it. The interval covers {_md(interval.covers)}, not",
        "attacks that were not tried.",
        "",
        "What the verdict rests on:",
        "",
        *(f"- {_md(reason)}" for reason in audit.reasons),
    ]
    if audit.symptoms:
        lines += ["", "What speaks against the number:", ""]
        lines += [
            f"- **{symptom.level}: {_md(symptom.name)}.** {_md(symptom.message)}"
            for symptom in audit.symptoms
        ]
    known = audit.versions.get("saddlepoint", "")
    lines += [
        "",
        f"Measured with saddlepoint {_md(known)}, budget {_md(audit.budget)}, seed {audit.seed}.",
    ]
    if audit.command:
        lines += ["", _code(audit.command)]
    return "\n".join([*lines, ""])


def _at_least(proven: CertifiedBound) -> str:
    return f"{100 * proven.accuracy:.1f} %, proven by {_md(proven.method)}"


def ledger(audit: Audit) -> dict[str, list[Any]]:
    """The columns of the per-example ledger."""
    known = audit.examples
    return {
        "example": list(range(audit.n)),
        "label": _list(audit.y),
        "winner": list(known.winner),
        "correct": _list(audit.correct),  # share of draws
        "answered": _list(audit.answered),
        "margin": _list(known.margin),
        "size": _list(known.size),
        "forward": _list(known.forward),
        "backward": _list(known.backward),
        "draws": [known.draws] * audit.n,
        "verified": _list(known.verified),
    }


def attack_lines(audit: Audit) -> list[dict[str, Any]]:
    """The rows of the record, each with the interval of its accuracy."""
    found = []
    for row, line in zip(audit.rows, audit.record()["rows"], strict=True):
        interval = wilson(row.robust_accuracy, audit.n)
        found.append({**line, "low": interval.low, "high": interval.high})
    return found


def as_csv(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """RFC 4180; text that a spreadsheet would compute is led by an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def _inert(cell: Any) -> Any:
    if isinstance(cell, bool):
        return int(cell)
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _list(values: Tensor) -> list[Any]:
    found: list[Any] = values.detach().cpu().tolist()
    return found


def _mean(values: Tensor) -> str:
    return f"{float(values.double().mean()):.1f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def _tex_line(
    name: str, accuracy: float, interval: Interval, running: float, forward: str, backward: str
) -> str:
    between = f"{100 * interval.low:.1f}--{100 * interval.high:.1f}"
    return f"{_tex(name)} & {100 * accuracy:.1f} & {between} & {100 * running:.1f} & {forward} & {backward} \\\\"


def _md(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _one_line(text))


def _code(text: str) -> str:
    """A block fenced by more backticks than the text holds in a row."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}\n{_one_line(text)}\n{fence}"
