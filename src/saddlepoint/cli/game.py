"""`saddlepoint game`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption, TargetArgument
from saddlepoint.cli.console import aside, dump, errors, examples, note, say
from saddlepoint.cli.execution import SandboxOption, check_device, use_sandbox
from saddlepoint.cli.folders import default_folder, writable
from saddlepoint.cli.options import game_options, game_spec, with_options

if TYPE_CHECKING:
    from saddlepoint.runs.game_spec import GameSpec


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "game",
        cls=with_options(game_options),
        epilog=examples(
            "saddlepoint game zoo:digits-exits --eps 0.15",
            "saddlepoint game net.py:make --data cifar10 --n 1000 --attack pgd-100",
            "saddlepoint game net.py:make --subsets intervals --rows double-oracle",
            "saddlepoint game zoo:digits-exits --eps 0.15 --json | jq .equilibrium",
            note="net.py contains a function without arguments that returns a model in eval mode. "
            "The forward pass of the model returns a list of logits, one per exit; a defense with "
            "several views also works. The game is built on the first images (--split), and its "
            "strategies are scored on the others. A game that was stopped continues when the same "
            "command is given again.",
        ),
    )(game)


def game(
    ctx: typer.Context,
    target: TargetArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results and the report.",
            metavar="FOLDER",
            show_default="runs/game-TARGET-NORM-RADIUS-DATA-N-ATTACK",
        ),
    ] = None,
    sandbox: SandboxOption = False,
    json: JsonOption = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only the outcome, warnings and notes.")
    ] = False,
) -> None:
    """Solve the game between attacker and defender on the exits of a network.

    The defender chooses with which exits to predict, the attacker which exits to attack. The
    command computes the best mix of exits and its accuracy on images that were not used for it.
    """
    spec = game_spec(target, ctx.obj)
    folder = out or _default_folder(spec)
    if sandbox:
        use_sandbox(folder, ())
    _play(spec, folder, json=json, quiet=quiet)


def _play(spec: GameSpec, folder: Path, *, json: bool, quiet: bool) -> None:
    from saddlepoint.cli.game_output import show, show_symptoms
    from saddlepoint.cli.progress import GameProgress
    from saddlepoint.games.reports.page import write_report
    from saddlepoint.games.runs.play import run_game

    check_device(spec.device)
    progress = GameProgress(errors(), shown=not (json or quiet), messages=not json)
    with writable(folder), aside(), progress as watch:
        record = run_game(spec, folder, watch=watch)
    page = write_report(record, folder / "report.html")
    if json:
        dump(record.record())
        return
    if quiet:
        show_symptoms(record, note)
    else:
        show(record, folder)
    say(f"{record.target}, {record.threat.partition(',')[0]}: {record.summary()}", style="bold")
    say(f"Report: {page}")


def _default_folder(spec: GameSpec) -> Path:
    folder = default_folder(
        spec.target,
        spec.threat.norm,
        spec.threat.radius,
        spec.data.name,
        spec.data.n,
        spec.attack,
    )
    return folder.with_name(f"game-{folder.name}")
