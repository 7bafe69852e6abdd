"""`saddlepoint runs`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, examples, output, say, table
from saddlepoint.cli.lazy_group import LazyGroup
from saddlepoint.phrases import count

Format = Literal["csv", "json", "latex", "card"]

_Run = Annotated[Path, typer.Argument(help="The folder of an audit or a game.", metavar="RUN")]
_DISAGREES = 1  # exit code if a run does not agree with its record, or cannot be compared with it


def add(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(
        cls=LazyGroup,
        no_args_is_help=True,
        help="List, show, verify, export and clean up runs.",
        rich_markup_mode="rich",
        epilog=examples(
            "saddlepoint runs list",
            "saddlepoint runs show runs/mine",
            "saddlepoint runs verify runs/mine",
        ),
    )
    group.command(
        "list",
        epilog=examples("saddlepoint runs list", "saddlepoint runs list ~/experiments --json"),
    )(list_runs)
    group.command(
        "show",
        epilog=examples(
            "saddlepoint runs show runs/mine", "saddlepoint runs show runs/mine --cells"
        ),
    )(show_run)
    group.command(
        "verify",
        epilog=examples(
            "saddlepoint runs verify runs/mine",
            "saddlepoint runs verify runs/mine --replay 5",
            "saddlepoint runs verify runs/mine --replay all --sign ~/.ssh/id_ed25519",
            "saddlepoint runs verify runs/mine --check-key author.pub",
            note="The target is loaded from the specification, so its code is executed: verify "
            "only runs of code that you trust. Without --replay, attacks are not run again, and "
            "cells could hold points of a weaker attack. Exit code 0: everything that can be "
            "compared agrees; 1: something does not.",
        ),
    )(verify_run)
    group.command(
        "export",
        epilog=examples(
            "saddlepoint runs export runs/mine --format latex",
            "saddlepoint runs export runs/mine --format csv --per example -o examples.csv",
        ),
    )(export_run)
    group.command(
        "gc",
        epilog=examples("saddlepoint runs gc runs/mine --dry-run", "saddlepoint runs gc runs/mine"),
    )(remove_unused)
    group.command(
        "compact",
        epilog=examples(
            "saddlepoint runs compact runs/mine",
            note="The cells keep their bytes, so that manifest and signature stay valid. A "
            "compacted run can be verified, replayed and resumed as before.",
        ),
    )(compact_run)
    app.add_typer(group, name="runs")


def list_runs(
    folder: Annotated[
        Path, typer.Argument(help="A folder that contains runs.", metavar="FOLDER")
    ] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """List the runs in a folder and below it: target, threat model, result and progress."""
    from saddlepoint.cli.run_output import place_below, state_of
    from saddlepoint.reports.run_folders import runs

    found = runs(folder)
    if json:
        dump([asdict(one) for one in found])
        return
    if not found:
        say(f"There are no runs in {folder}. `saddlepoint audit` creates one.")
        return
    rows = [
        [
            place_below(one, folder),
            one.kind,
            one.target,
            one.threat,
            *state_of(one),
            f"{one.done}/{one.total}",
            one.hashes,
        ]
        for one in found
    ]
    head = (
        "run",
        "kind",
        "target",
        "threat",
        "verdict",
        "robust accuracy",
        "state",
        "cells",
        "files",
    )
    output().print(table(head, rows))
    say("Nothing here is verified: `saddlepoint runs verify RUN` computes it again.")
    for one in found:
        if one.problem:
            say(f"{one.folder}: {one.problem}", style="red")


def show_run(
    run: _Run,
    cells: Annotated[bool, typer.Option("--cells", help="Also list every cell.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the specification of a run, its progress, its events, and the time of each attack."""
    from saddlepoint.cli.run_output import print_cells, print_details
    from saddlepoint.reports.run_folders import details

    found = details(run)
    if json:
        dump(asdict(found))
        return
    print_details(found)
    if cells:
        print_cells(found)
    if found.spec:
        say("Specification", style="bold")
        say(found.spec)


def verify_run(
    run: _Run,
    replay: Annotated[
        str,
        typer.Option(
            metavar="K",
            help="Compute K random attack cells again, and K/2 weak ones, or 'all', and compare.",
        ),
    ] = "0",
    sign: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY",
            help="If everything agrees, sign the manifest with this private Ed25519 key of SSH.",
        ),
    ] = None,
    check_key: Annotated[
        Path | None,
        typer.Option(
            metavar="KEY",
            help="Check that the manifest was signed with this public Ed25519 key of SSH.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also compare this file, which `runs export` wrote, with the run.",
        ),
    ] = None,
    sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox",
            help="Run the code of the target without network and with a read-only file system. "
            "Needs Linux; it is an error where it is not available.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Verify a run: the hash of every file, every prediction, and every field of its record.

    The target is loaded again, in a new process. Attacks are run again with --replay only.
    """
    if sandbox:
        from saddlepoint.cli.sandbox import require_sandbox

        require_sandbox([run] if sign else [])
    from saddlepoint.cli.run_output import print_verification
    from saddlepoint.cli.verification import verified

    found = verified(run, replay=replay, check_key=check_key, export=export)
    if sign is not None and found.passed:
        from saddlepoint.runs.signing import sign as write_signature

        write_signature(run, sign)
    if json:
        dump({**asdict(found), "passed": found.passed})
    else:
        print_verification(found, replayed=replay != "0")
        if sign is not None:
            say(f"Signature: {run / 'manifest.json.sig'}" if found.passed else "It is not signed.")
    if not found.passed:
        raise typer.Exit(_DISAGREES)


def export_run(
    run: _Run,
    format: Annotated[  # noqa: A002
        Format, typer.Option("--format", help="Format of the output.", case_sensitive=False)
    ] = "csv",
    per: Annotated[
        str,
        typer.Option("--per", help="csv: one line per 'attack' or per 'example'.", metavar="WHAT"),
    ] = "attack",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write.",
            metavar="FILE",
            show_default="printed",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Write a finished run as CSV, JSON, LaTeX table or section of a model card.

    A game is written as CSV or JSON: its payoff matrix.
    """
    from saddlepoint.cli.run_output import exported

    if per not in ("attack", "example"):
        raise ValueError(f"--per is 'attack' or 'example', got {per!r}.")
    text = exported(run, "json" if json else format, per)
    if out is None:
        typer.echo(text, nl=False)
        return
    # The lines of a CSV file have their own ends already.
    out.write_text(text, encoding="utf-8", newline="")
    say(str(out))


def remove_unused(
    run: _Run,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and keep it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Remove files that a run does not use.

    These are cells and diagnostics of other requests, incomplete files of killed processes, and
    locks.
    """
    from saddlepoint.cli.run_output import file_size
    from saddlepoint.runs.gc import collect_garbage

    freed = collect_garbage(run, dry_run=dry_run)
    if json:
        dump(asdict(freed))
        return
    verb = "Removed" if freed.removed else "Would remove"
    say(
        f"{verb} {count(freed.cells, 'cell')} and {count(freed.diagnostics, 'diagnostic')} of "
        f"other requests, {count(freed.incomplete, 'incomplete file')} and "
        f"{count(freed.locks, 'lock')}: {count(len(freed.files), 'file')}, "
        f"{file_size(freed.bytes)}."
    )
    if dry_run:
        for name in freed.files:
            say(f"  {name}")


def compact_run(run: _Run, json: JsonOption = False) -> None:
    """Move the files of all cells of a run into one archive, cells.zip."""
    from saddlepoint.cli.run_output import file_size
    from saddlepoint.runs.compact import compact

    done = compact(run)
    if json:
        dump(asdict(done))
        return
    say(
        f"Moved {count(done.cells, 'cell')}: {count(done.files_before, 'file')}, "
        f"{file_size(done.bytes_before)}, before; {count(done.files, 'file')}, "
        f"{file_size(done.bytes)}, now."
    )
