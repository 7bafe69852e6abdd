"""`saddlepoint runs`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saddlepoint.cli.console import dump, examples, output, percent, say, table
from saddlepoint.cli.lazy_group import Light
from saddlepoint.cli.options import is_game

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.runs.inspect import Details, Summary

_Run = Annotated[Path, typer.Argument(help="The folder that an audit wrote.", metavar="RUN")]
_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON, and nothing else.")]
_DISAGREES = 1  # exit code of a run that is not what it claims


class Format(StrEnum):
    """What a run can be written as."""

    csv = "csv"
    json = "json"
    latex = "latex"
    card = "card"


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=Light,
        no_args_is_help=True,
        help="List, show, verify, export and tidy runs.",
        rich_markup_mode="rich",
    )
    group.command(
        "list",
        epilog=examples("saddlepoint runs list", "saddlepoint runs list ~/experiments --json"),
    )(listed)
    group.command(
        "show",
        epilog=examples(
            "saddlepoint runs show runs/mine", "saddlepoint runs show runs/mine --cells"
        ),
    )(shown)
    group.command(
        "verify",
        epilog=examples(
            "saddlepoint runs verify runs/mine",
            note="The target is loaded from the specification, so its code is run: verify runs of people whose code you would run. "
            "Exit code 0: everything agrees; 1: something does not.",
        ),
    )(verified)
    group.command(
        "export",
        epilog=examples(
            "saddlepoint runs export runs/mine --format latex",
            "saddlepoint runs export runs/mine --format csv --per example -o examples.csv",
        ),
    )(exported)
    group.command(
        "gc",
        epilog=examples("saddlepoint runs gc runs/mine --dry-run", "saddlepoint runs gc runs/mine"),
    )(tidied)
    app.add_typer(group, name="runs")


def listed(
    folder: Annotated[Path, typer.Argument(help="A folder of runs.", metavar="FOLDER")] = Path(
        "runs"
    ),
    json: _Json = False,
) -> None:
    """List the runs below a folder: what was audited, what came out, how far it is."""
    from saddlepoint.runs.inspect import runs

    found = runs(folder)
    if json:
        dump([asdict(one) for one in found])
        return
    if not found:
        say(f"There are no runs below {folder}. `saddlepoint audit` makes one.")
        return
    rows = [
        [
            _below(one, folder),
            one.kind,
            one.target,
            one.threat,
            *_state(one),
            f"{one.done}/{one.total}",
        ]
        for one in found
    ]
    output().print(
        table(
            ("run", "kind", "target", "threat", "verdict", "robust, at most", "finished", "cells"),
            rows,
        )
    )
    for one in found:
        if one.problem:
            say(f"{one.folder}: {one.problem}", style="red")


def shown(
    run: _Run,
    cells: Annotated[bool, typer.Option("--cells", help="List every cell.")] = False,
    json: _Json = False,
) -> None:
    """Show what was asked for, how far it is, what happened when, and how long it took."""
    from saddlepoint.runs.inspect import details

    found = details(run)
    if json:
        dump(asdict(found))
        return
    _describe(found)
    if cells:
        rows = [
            [cell.key[:12], cell.adversary or "–", "–".join(map(str, cell.rows)) if cell.rows else "–", cell.state,
             f"{cell.seconds:.2f}" if cell.seconds is not None else "–", str(cell.bytes)]
            for cell in found.cells
        ]  # fmt: skip
        output().print(table(("cell", "adversary", "images", "state", "seconds", "bytes"), rows))
    if found.spec:
        say("Specification", style="bold")
        say(found.spec)


def verified(run: _Run, json: _Json = False) -> None:
    """Check every cell by its hash, and put every worst point to the target again, which is loaded anew."""
    from saddlepoint.runs.verify import verify

    found = verify(run)
    if json:
        dump({**asdict(found), "passed": found.passed})
    else:
        for check in found.checks:
            word = "ok" if check.passed else "DISAGREES"
            say(f"{word:10}{check.name}: {check.message}", style="" if check.passed else "red")
        say(
            "The run is what it claims to be."
            if found.passed
            else "The run is not what it claims to be.",
            style="bold",
        )
    if not found.passed:
        raise typer.Exit(_DISAGREES)


def exported(
    run: _Run,
    format: Annotated[  # noqa: A002
        Format, typer.Option("--format", help="As what.", case_sensitive=False)
    ] = Format.csv,
    per: Annotated[
        str,
        typer.Option("--per", help="csv: a line per 'attack' or per 'example'.", metavar="WHAT"),
    ] = "attack",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file.", metavar="FILE", show_default="printed"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write a finished run as CSV, JSON, a LaTeX table or a section of a model card; of a game, the matrix as CSV or JSON."""
    if per not in ("attack", "example"):
        raise ValueError(f"--per is 'attack' or 'example', got {per!r}.")
    chosen = Format.json if json else format
    text = (
        _written_game(run, chosen, per) if is_game(run) else _written(_finished(run), chosen, per)
    )
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(
        text, encoding="utf-8", newline=""
    )  # the lines of a CSV file end as they should already
    say(str(out))


def tidied(
    run: _Run,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and keep it.")
    ] = False,
    json: _Json = False,
) -> None:
    """Remove cells that the run does not use, trials, torn files of killed processes, and locks."""
    from saddlepoint.runs.gc import tidy

    freed = tidy(run, dry_run=dry_run)
    if json:
        dump(asdict(freed))
        return
    verb = "Removed" if freed.removed else "Would remove"
    beside = f"{freed.trials} trials, {freed.torn} torn files and {freed.locks} locks"
    say(f"{verb} {freed.cells} cells of other requests, {beside}: {_size(freed.bytes)}.")


def _finished(run: Path) -> Audit:
    """The record of the run; that of an earlier request in the same folder is not passed off as it."""
    from saddlepoint.audits import Audit

    _refuse_unfinished(run)
    return Audit.load(run)


def _written_game(run: Path, format: Format, per: str) -> str:  # noqa: A002
    from saddlepoint.games.reports.export import as_json, payoff_csv
    from saddlepoint.games.runs.record import GameRecord

    if per != "attack" or format not in (Format.csv, Format.json):
        raise ValueError(
            f"{run} holds a game, which is exported with --format csv or json, a line per attack."
        )
    record = GameRecord.load(run)
    _refuse_unfinished(run)
    return payoff_csv(record) if format is Format.csv else as_json(record)


def _refuse_unfinished(run: Path) -> None:
    from saddlepoint.runs.inspect import summary

    if (run / "run.json").is_file() and not (found := summary(run)).finished:
        raise ValueError(
            found.problem
            or f"{run} is not finished: {found.done} of {found.total} cells of the {found.kind} of {found.target}. "
            "Give its command again."
        )


def _written(audit: Audit, format: Format, per: str) -> str:  # noqa: A002
    from saddlepoint.reports.export import as_json, examples_csv, latex, model_card, rows_csv

    if format is Format.csv:
        return rows_csv(audit) if per == "attack" else examples_csv(audit)
    return {Format.json: as_json, Format.latex: latex, Format.card: model_card}[format](audit)


def _describe(found: Details) -> None:
    one = found.summary
    say(f"{one.kind}: {one.target}, {one.threat}, {one.examples} images", style="bold")
    say(f"model hash {found.target_sha256[:16]}…")
    verdict, robust, finished = _state(one)
    say(
        f"{finished}, {one.done} of {one.total} cells"
        + (f"; {verdict}: at most {robust}" if one.finished else "")
    )
    damaged = [cell for cell in found.cells if cell.state == "damaged"]
    for cell in damaged:
        say(f"{cell.problem} It is computed again when the audit is run again.", style="red")
    if found.foreign:
        say(
            f"{found.foreign} more cells are of other requests in this folder; `saddlepoint runs gc` removes them."
        )
    if found.timing:
        output().print(
            table(
                ("adversary", "seconds"),
                [[name, f"{spent:.1f}"] for name, spent in found.timing.items()],
            )
        )
    say("Events", style="bold")
    for event in found.events:
        if event["event"] != "cell":
            say(_event(event))


def _event(event: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(event["time"]).astimezone().isoformat(" ", "seconds")
    about = {
        name: value
        for name, value in event.items()
        if name not in ("time", "pid", "event", "run", "threat")
    }
    return f"{when}  {event['event']}  " + ", ".join(
        f"{name} {value}" for name, value in about.items()
    )


def _state(one: Summary) -> tuple[str, str, str]:
    if one.problem:
        return "unreadable", "–", "no"
    if one.robust_accuracy is None:
        return "–", "–", f"running, {one.at_work} at work" if one.at_work else "not finished"
    return one.verdict, percent(one.robust_accuracy), "finished"


def _below(one: Summary, folder: Path) -> str:
    path = Path(one.folder)
    return str(path.relative_to(folder)) if path != folder else path.name or str(path)


def _size(count: int) -> str:
    size = float(count)
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size = size / 1000
        unit = larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
