"""`saddlepoint demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.request import Budget, executor, run
from saddlepoint.cli.text import errors, examples, output, percent, say, table

_MODELS = ("digits-standard", "digits-pgd", "digits-trades")


def add(app: typer.Typer) -> None:
    app.command("demo", epilog=examples("saddlepoint demo", "saddlepoint demo --out /tmp/demo --n 100"))(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Where to write.", metavar="FOLDER")] = Path("runs/demo"),
    n: Annotated[int, typer.Option("--n", min=1, max=500, help="How many digits.")] = 500,
    budget: Annotated[Budget, typer.Option(help="How much the attacks may cost.", case_sensitive=False)] = Budget.standard,
    json: Annotated[bool, typer.Option("--json", help="Print the records as JSON, and nothing else.")] = False,
) -> None:
    """Audit small trained nets on the embedded digits: what training against attacks buys. Takes about a minute."""
    from saddlepoint.cli.progress import Watching
    from saddlepoint.report.comparison import write
    from saddlepoint.run.spec import parse
    from saddlepoint.zoo import entry, names

    chosen = [name for name in _MODELS if name in names()]
    if not chosen:
        raise ValueError(f"none of {', '.join(_MODELS)} is installed. Install the package again.")
    audits = []
    for name in chosen:
        asked = {
            "target": f"zoo:{name}",
            "data": {"n": n},
            "threat": {"eps": f"{entry(name).measured.radius:g}"},
            "budget": budget.value,
        }
        with Watching(errors(), title=name, folder=out / name, shown=not json) as watch:
            audits.append(run(parse(asked), out / name, by=executor(None, None, None), watch=watch))
    page = write([(audit, f"{name}/report.html") for audit, name in zip(audits, chosen, strict=True)], out / "index.html")
    if json:
        import json as notation

        typer.echo(notation.dumps([audit.record() for audit in audits], indent=1))
        return
    rows = [
        [name, percent(a.clean_accuracy), percent(a.robust_accuracy), f"{100 * a.interval.low:.0f}–{100 * a.interval.high:.0f} %",
         a.verdict, f"{a.seconds:.0f}"]
        for name, a in zip(chosen, audits, strict=True)
    ]  # fmt: skip
    output().print(table(("model", "clean", "robust, at most", "95 % interval", "verdict", "seconds"), rows))
    say(f"{audits[0].n} digits, {audits[0].threat.partition(',')[0]}. Robust accuracy is an upper bound.")
    say(f"Report: {page}")
