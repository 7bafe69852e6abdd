"""`saddlepoint game`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saddlepoint.cli.console import (
    STYLES,
    aside,
    dump,
    errors,
    examples,
    output,
    percent,
    say,
    table,
)
from saddlepoint.cli.options import (
    USUAL_RADIUS,
    Attack,
    Norm,
    Rows,
    Subsets,
    default_folder,
    images,
    refuse_missing_device,
    refuse_unwritable,
)

if TYPE_CHECKING:
    from saddlepoint.evaluation.bootstrap import Estimate
    from saddlepoint.games.runs.record import Exposed, GameRecord

_WHOLE = 16  # columns up to which the whole matrix is printed


def add(app: typer.Typer) -> None:
    app.command(
        "game",
        epilog=examples(
            "saddlepoint game zoo:digits-exits --eps 0.15",
            "saddlepoint game net.py:make --data cifar10 --n 1000 --attack pgd-100",
            "saddlepoint game net.py:make --subsets intervals --rows double-oracle",
            "saddlepoint game zoo:digits-exits --eps 0.15 --json | jq .equilibrium",
            note="net.py holds a function without arguments that returns a model in eval mode whose forward gives a list of "
            "logits, one per exit, or a defense with several views. The first images, --split of them, build the game; what came "
            "out is scored on the others. A game that was stopped goes on when the command is given again.",
        ),
    )(game)


def game(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:factory, package.module:factory or zoo:NAME.", metavar="TARGET"
        ),
    ],
    data: Annotated[
        str, typer.Option(help="A name (`saddlepoint data list`), a .npz file or file.py:function.")
    ] = "digits",
    n: Annotated[
        int | None,
        typer.Option(
            "--n",
            min=2,
            help="How many images.",
            show_default="500 of a named source, all of your own",
        ),
    ] = None,
    norm: Annotated[
        Norm, typer.Option(help="How perturbations are measured.", case_sensitive=False)
    ] = Norm.linf,
    eps: Annotated[
        str | None,
        typer.Option(
            metavar="RADIUS",
            help="As 8/255 or 0.031, for pixels from 0 to 1.",
            show_default="linf 8/255, l2 0.5, l1 12",
        ),
    ] = None,
    attack: Annotated[
        Attack, typer.Option(help="By which sets of exits are attacked.", case_sensitive=False)
    ] = Attack.pgd_20,
    subsets: Annotated[
        Subsets,
        typer.Option(help="Sets of exits: all, or runs of neighbors.", case_sensitive=False),
    ] = Subsets.all,
    rows: Annotated[
        Rows,
        typer.Option(help="Attack every set, or only those that matter.", case_sensitive=False),
    ] = Rows.all,
    tolerance: Annotated[
        float, typer.Option(help="When the double oracle stops: what another row may still gain.")
    ] = 0.003,
    split: Annotated[
        float, typer.Option(help="Share of the images that build the game.", metavar="SHARE")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Every random number follows from it.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write.", metavar="FOLDER", show_default="runs/game-TARGET-NORM-RADIUS"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images attacked together.")] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    root: Annotated[
        Path | None, typer.Option(help="The folder that holds the data.", metavar="FOLDER")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No progress, no tables: the outcome alone.")
    ] = False,
) -> None:
    """Play attacker against defender on the exits of a network: the best mix of exits, and what is left of it elsewhere."""
    from saddlepoint.cli.progress import Rounds
    from saddlepoint.games.reports.page import write
    from saddlepoint.games.runs.play import run_game
    from saddlepoint.games.runs.spec import GameSpec
    from saddlepoint.runs.spec import checked, radius

    eps = eps or USUAL_RADIUS[norm]
    radius(eps)
    asked: dict[str, Any] = {
        "target": target, "data": images(data, n, root), "threat": {"norm": norm.value, "eps": eps}, "attack": attack.value,
        "subsets": subsets.value, "rows": rows.value, "tolerance": tolerance, "split": split, "seed": seed,
        "batch_size": batch_size, "device": device,
    }  # fmt: skip
    spec = checked(GameSpec, asked, "what was asked for")
    place = out or _default_folder(target, norm, eps)
    refuse_missing_device(spec.device)
    refuse_unwritable(place)
    with aside(), Rounds(errors(), shown=not (json or quiet)) as watch:
        found = run_game(spec, place, watch=watch)
    page = write(found, place / "report.html")
    if json:
        dump(found.record())
        return
    if not quiet:
        show(found, place)
    say(f"{found.target}, {found.threat.partition(',')[0]}: {found.summary()}", style="bold")
    say(f"Report: {page}")


def _default_folder(target: str, norm: str, eps: str) -> Path:
    folder = default_folder(target, norm, eps)
    return folder.with_name(f"game-{folder.name}")


def show(found: GameRecord, place: Path) -> None:
    """What speaks against the numbers, the matrix, its solution, and what strategies are worth on other images."""
    for symptom in found.symptoms:
        say(f"{symptom.level}: {symptom.name}. {symptom.message}", style=STYLES[symptom.level])
    _matrix(found, place)
    _solution(found)
    rows = [_line(strategy) for strategy in found.strategies]
    say(
        f"On {found.scored_on} images that did not build the game, accuracy under attackers who know more and more:"
    )
    output().print(
        table(("strategy", "clean", "promised", "AIMER", "expected loss", "per image"), rows)
    )
    gains = "; ".join(f"{name} {_points(found.gains[key])}" for name, key in _ATTACKERS)
    say(f"NEED less the best pure answer there, image by image: {gains}.")


_ATTACKERS = (("AIMER", "aimer"), ("expected loss", "expected_loss"), ("per image", "per_image"))


def _matrix(found: GameRecord, place: Path) -> None:
    from saddlepoint.games.runs.record import best_pure, support

    shown = list(range(len(found.subsets)))
    cut = ""
    if len(shown) > _WHOLE:
        shown = list(dict.fromkeys([*support(found.equilibrium.mix), *best_pure(found)]))[:_WHOLE]
        count = f"{len(shown)} of {len(found.subsets)} columns"
        cut = f"; {count}, those of NEED's mix and the best pure ones (all are in {place / 'game.json'})"
    say(
        f"Accuracy in % on the {found.built_on} images of the game, rows attacked, columns answering{cut}:"
    )
    payoff = found.payoff
    rows = [
        [row.name, *(_cell(float(payoff[a, d]), row.target == found.subsets[d]) for d in shown)]
        for a, row in enumerate(found.rows)
    ]
    output().print(table(("", *(found.columns[d] for d in shown)), rows))


def _cell(share: float, matched: bool) -> str:
    return f"{100 * share:.1f}" + ("*" if matched else "")


def _solution(found: GameRecord) -> None:
    from saddlepoint.games.runs.record import shown

    columns = found.columns
    names = [row.name for row in found.rows]
    lines = [
        ("restricted value", f"{found.value}; the best pure answer, {_named(found)}: {percent(found.pure_value)}"),
        ("NEED's mix", shown(found.equilibrium.mix, columns)),
        ("attacker's mix", shown(found.attacker, names)),
        ("duality gap", f"{found.equilibrium.gap:.1e}"),
        ("AIMER's best response", shown(found.response, names)),
        ("mismatch R_mis", "not defined: a row aims at no set of exits" if found.mismatch is None else f"{found.mismatch:.3f}"),
        ("matched rows beaten", f"in {found.beaten} of {found.matched} columns a mismatched row does more harm than its own (*)"),
        ("per-image game", f"{percent(found.per_example.value)} by {shown(found.per_example.mix, columns)}; "
         f"certified to within {found.per_example.gap:.1e}"),
    ]  # fmt: skip
    if found.exploitability is not None:
        lines.append(
            (
                "exploitability",
                f"{100 * found.exploitability:.2f} points when the double oracle stopped",
            )
        )
    output().print(table(("", ""), lines))


def _named(found: GameRecord) -> str:
    return found.columns[found.subsets.index(found.pure)]


def _line(strategy: Exposed) -> Sequence[str]:
    estimates = (strategy.aimer, strategy.expected_loss, strategy.per_image)
    return [
        strategy.name,
        percent(strategy.clean.value),
        percent(strategy.restricted),
        *map(_span, estimates),
    ]


def _span(estimate: Estimate) -> str:
    return f"{percent(estimate.value)} ({100 * estimate.low:.1f}–{100 * estimate.high:.1f})"


def _points(gain: Estimate) -> str:
    return f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
