"""`saddlepoint demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint import phrases
from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, errors, examples, output, percent, say, table
from saddlepoint.cli.execution import choose_executor, run
from saddlepoint.cli.options import some_audit_options, with_options

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.runs.spec import RunSpec


@dataclass(frozen=True)
class _Model:
    """A model of the demonstration.

    A model that adapts at test time is slow. It is evaluated on fewer images, with the quick
    budget.
    """

    name: str
    most: int = 500  # largest number of images
    batch_size: int = 128
    quick: bool = False  # use the quick budget, whatever the budget of the others
    randomness: str = "private"


_MODELS = (
    _Model("digits-standard"),
    _Model("digits-pgd"),
    _Model("digits-trades"),
    _Model("digits-dent", most=128, quick=True),  # one batch, to which the model adapts
    # One image at a time; for every prediction, a network is fine-tuned twice.
    _Model("digits-rmc", most=2, batch_size=1, quick=True, randomness="fixed"),
)


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "demo",
        cls=with_options(some_audit_options("budget")),
        epilog=examples("saddlepoint demo", "saddlepoint demo --out /tmp/demo --n 100"),
    )(demo)


def demo(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder for the results and the report.", metavar="FOLDER")
    ] = Path("runs/demo"),
    n: Annotated[
        int, typer.Option("--n", min=1, max=500, help="Largest number of images per model.")
    ] = 500,
    json: JsonOption = False,
) -> None:
    """Audit small trained networks on the embedded digits data, and compare them.

    The models show what adversarial training and adaptation at test time achieve. It takes about
    a minute. The two models that adapt at test time are evaluated on fewer images with the quick
    budget, and one of them with fixed random numbers.
    """
    from saddlepoint.reports.comparison import write_leaderboard
    from saddlepoint.zoo import names

    models = [model for model in _MODELS if model.name in names()]
    if not models:
        raise ValueError(
            f"none of {', '.join(model.name for model in _MODELS)} is installed. "
            "Install the package again."
        )
    audits = [_audit(model, out, n, ctx.obj["budget"], shown=not json) for model in models]
    pages = [(a, f"{m.name}/report.html") for a, m in zip(audits, models, strict=True)]
    page = write_leaderboard(pages, out / "index.html")
    if json:
        dump([audit.record() for audit in audits])
        return
    rows = [_row(model, audit) for model, audit in zip(models, audits, strict=True)]
    head = (
        "model",
        "images",
        "clean accuracy",
        "robust accuracy",
        "95 % interval",
        "verdict",
        "seconds",
    )
    output().print(table(head, rows))
    say(f"{audits[0].threat.partition(',')[0]}. Robust accuracy is an upper bound.")
    say(f"Report: {page}")


def _audit(model: _Model, out: Path, n: int, budget: str, *, shown: bool) -> Audit:
    from saddlepoint.cli.progress import ProgressBar

    folder = out / model.name
    with ProgressBar(errors(), title=model.name, folder=folder, shown=shown) as watch:
        spec = _spec(model, n, budget)
        return run(spec, folder, by=choose_executor(None, None, None), watch=watch)


def _row(model: _Model, audit: Audit) -> list[str]:
    return [
        model.name,
        str(audit.n),
        percent(audit.clean_accuracy),
        phrases.at_most(audit.robust_accuracy),
        phrases.percent_range(audit.interval.low, audit.interval.high, "–"),
        audit.verdict,
        f"{audit.seconds:.0f}",
    ]


def _spec(model: _Model, n: int, budget: str) -> RunSpec:
    from saddlepoint.runs.spec import parse
    from saddlepoint.zoo import entry

    return parse(
        {
            "target": f"zoo:{model.name}",
            "data": {"n": min(n, model.most)},
            "threat": {
                "radius": f"{entry(model.name).measured.radius:g}",
                "randomness": model.randomness,
            },
            "budget": "quick" if model.quick else budget,
            "batch_size": model.batch_size,
        }
    )
