"""How an audit is shown in a notebook: as HTML, and as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from saddlepoint.phrases import at_most, percent

if TYPE_CHECKING:
    from saddlepoint.audits.result import Audit

# Bars and text take the colors of the notebook, dark or light.
_BAR = "display:inline-block;height:.7em;background:currentColor;opacity:{opacity};width:{width}em"
_WIDTH = 12  # of a bar of 100 %, in em


def as_html(audit: Audit) -> str:
    """The verdict, and the accuracy after each attack as a bar chart."""
    return "".join(_parts(audit))


def _parts(audit: Audit) -> Iterator[str]:
    headline = f"{audit.verdict}: robust accuracy {at_most(audit.robust_accuracy)}"
    yield f"<div><b>{escape(audit.target)}</b>, {escape(audit.threat)}<br>"
    yield f"<b>{escape(headline)}</b> ({escape(str(audit.interval))})</div>"
    yield "<table><tr><th>attack</th><th>accuracy</th><th>worst case so far</th></tr>"
    yield _row("clean", audit.clean_accuracy, audit.clean_accuracy)
    for row in audit.rows:
        yield _row(row.name, row.robust_accuracy, row.running)
    yield "</table>"
    symptoms = [f"<li>{escape(f'{s.level}: {s.message}')}</li>" for s in audit.symptoms]
    yield f"<ul>{''.join(symptoms)}</ul>" if symptoms else ""


def _row(name: str, accuracy: float, running: float) -> str:
    filled = _BAR.format(opacity=0.8, width=round(_WIDTH * running, 3))
    lost = _BAR.format(opacity=0.15, width=round(_WIDTH * (1 - running), 3))
    bar = f'<span style="{filled}"></span><span style="{lost}"></span>'
    return (
        f"<tr><td>{escape(name)}</td><td>{percent(accuracy)}</td>"
        f"<td>{bar} {percent(running)}</td></tr>"
    )


def as_dataframe(audit: Audit) -> Any:
    """One line per image, as a `pandas.DataFrame`.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "to_dataframe needs pandas: pip install pandas. For a stored run, "
            "`saddlepoint runs export RUN --format csv --per example` needs no pandas."
        ) from error
    examples = audit.examples
    unknown = [float("nan")] * audit.n
    return pandas.DataFrame(
        {
            "label": audit.y.tolist(),
            "winner": list(examples.winner),
            "correct": audit.correct.tolist(),
            "answered": audit.answered.tolist(),
            "margin": examples.margin.tolist(),
            "size": examples.size.tolist(),
            "smallest": examples.smallest.tolist() or unknown,
            "forward": examples.forward.tolist(),
            "backward": examples.backward.tolist(),
            "verified": examples.verified.tolist(),
        }
    ).rename_axis("example")
