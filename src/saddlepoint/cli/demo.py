"""`saddlepoint demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import errors, examples, output, percent, say, table
from saddlepoint.cli.options import Budget, executor, run

if TYPE_CHECKING:
    from saddlepoint.runs.spec import RunSpec


@dataclass(frozen=True)
class _Subject:
    """A model of the demonstration. One that learns at test time takes longer: it meets fewer digits, quicker attacks."""

    name: str
    most: int = 500  # digits
    batch_size: int = 128
    quick: bool = False  # whatever the budget of the others
    randomness: str = "private"


_SUBJECTS = (
    _Subject("digits-standard"),
    _Subject("digits-pgd"),
    _Subject("digits-trades"),
    _Subject("digits-dent", most=128, quick=True),  # one batch, adapted to as a whole
    _Subject(
        "digits-rmc", most=2, batch_size=1, quick=True, randomness="fixed"
    ),  # in turn; a network is tuned twice for every answer
)


def add(app: typer.Typer) -> None:
    app.command(
        "demo", epilog=examples("saddlepoint demo", "saddlepoint demo --out /tmp/demo --n 100")
    )(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Where to write.", metavar="FOLDER")] = Path(
        "runs/demo"
    ),
    n: Annotated[int, typer.Option("--n", min=1, max=500, help="How many digits, at most.")] = 500,
    budget: Annotated[
        Budget, typer.Option(help="How much the attacks may cost.", case_sensitive=False)
    ] = Budget.standard,
    json: Annotated[
        bool, typer.Option("--json", help="Print the records as JSON, and nothing else.")
    ] = False,
) -> None:
    """Audit small trained nets on the embedded digits: what training against attacks buys, and what learning at test time does.

    Takes about a minute. The two that learn at test time meet fewer digits and the quick budget, and one tosses its coins once.
    """
    from saddlepoint.cli.progress import Watching
    from saddlepoint.reports.comparison import write
    from saddlepoint.zoo import names

    chosen = [subject for subject in _SUBJECTS if subject.name in names()]
    if not chosen:
        raise ValueError(
            f"none of {', '.join(one.name for one in _SUBJECTS)} is installed. Install the package again."
        )
    audits = []
    for subject in chosen:
        place = out / subject.name
        with Watching(errors(), title=subject.name, folder=place, shown=not json) as watch:
            audits.append(
                run(_spec(subject, n, budget), place, by=executor(None, None, None), watch=watch)
            )
    page = write(
        [(audit, f"{one.name}/report.html") for audit, one in zip(audits, chosen, strict=True)],
        out / "index.html",
    )
    if json:
        import json as notation

        typer.echo(notation.dumps([audit.record() for audit in audits], indent=1))
        return
    rows = [
        [one.name, str(a.n), percent(a.clean_accuracy), percent(a.robust_accuracy),
         f"{100 * a.interval.low:.0f}–{100 * a.interval.high:.0f} %", a.verdict, f"{a.seconds:.0f}"]
        for one, a in zip(chosen, audits, strict=True)
    ]  # fmt: skip
    output().print(
        table(
            ("model", "digits", "clean", "robust, at most", "95 % interval", "verdict", "seconds"),
            rows,
        )
    )
    say(f"{audits[0].threat.partition(',')[0]}. Robust accuracy is an upper bound.")
    say(f"Report: {page}")


def _spec(subject: _Subject, n: int, budget: Budget) -> RunSpec:
    from saddlepoint.runs.spec import parse
    from saddlepoint.zoo import entry

    return parse(
        {
            "target": f"zoo:{subject.name}",
            "data": {"n": min(n, subject.most)},
            "threat": {
                "eps": f"{entry(subject.name).measured.radius:g}",
                "randomness": subject.randomness,
            },
            "budget": (Budget.quick if subject.quick else budget).value,
            "batch_size": subject.batch_size,
        }
    )
