"""`saddlepoint zoo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, errors, examples, output, percent, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from saddlepoint.zoo import AuditRecord, Entry

_AUDITED = ("measured at", "images", "clean accuracy", "robust accuracy", "verdict")


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "zoo",
        epilog=examples(
            "saddlepoint zoo",
            "saddlepoint zoo --json",
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
            "saddlepoint zoo digits-hedge --measure",
            "saddlepoint zoo digits-pgd --measure --folder runs/train-digits-pgd",
        ),
    )(zoo)


def zoo(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Names of models.", metavar="[NAME]...", show_default="all"),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Audit the models with the standard budget and write their records. "
            "An interrupted measurement continues.",
        ),
    ] = False,
    images: Annotated[
        int | None,
        typer.Option(
            help="Audit this many images; with --measure.",
            min=1,
            show_default="the number of the model's setting, at most 100",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder with models that `saddlepoint train` wrote.",
            metavar="FOLDER",
            show_default="the models of the package",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the trained models and the defenses of the package, with their audited accuracies.

    The robust accuracy is an upper bound from an audit with the standard budget. It is left out if
    the attacks on a defense were weaker than those on its network, or if the weights have changed.
    Beside it is the accuracy of the static network of a defense on all points of the same audit.
    Adaptive defenses are listed with the categories of Croce et al. 2022.
    """
    from saddlepoint.zoo import audited, entry, names
    from saddlepoint.zoo.adaptive.taxonomy import BLOCKS, PRINCIPLES
    from saddlepoint.zoo.records import WEIGHTS

    place = folder or WEIGHTS
    entries = [entry(name, place) for name in models or names(place)]
    if measure:
        _measure(entries, place, images, quiet=json)
    if json:
        dump([_record(one, place) for one in entries])
        return
    networks = [one for one in entries if not one.defense]
    defenses = [one for one in entries if one.defense]
    if networks:
        output().print(model_table(networks, place))
    if defenses:
        output().print(defense_table(defenses, place))
        legend = [*PRINCIPLES.items(), *BLOCKS.items()]
        meaning = "; ".join(f"{short}: {words}" for short, words in legend)
        say(f"{meaning} (Croce et al. 2022, Sec. 2).")
    if any(audited(one.name, place) is None for one in entries):
        say("Audit a model that was not audited yet: saddlepoint zoo NAME --measure")
    say("Audit one with your own settings: saddlepoint audit zoo:NAME --eps RADIUS")


def model_table(entries: Sequence[Entry], folder: Path) -> Table:
    """A table of networks with their audited accuracies."""
    from saddlepoint.zoo import audited

    rows = [
        [
            one.name,
            str(one.parameters),
            f"{one.training_radius:g}" if one.training_radius else "–",
            *_cells(audited(one.name, folder), folder),
        ]
        for one in entries
    ]
    return table(("name", "parameters", "training radius", *_AUDITED), rows)


def defense_table(entries: Sequence[Entry], folder: Path) -> Table:
    """A table of defenses with category, network and audited accuracies."""
    from saddlepoint.zoo import audited
    from saddlepoint.zoo.adaptive.taxonomy import surveyed

    rows = []
    for one in entries:
        row = surveyed(one.defense)
        category = (row.principle, ", ".join(row.blocks)) if row else ("–", "–")
        record = audited(one.name, folder)
        static = record.static_accuracy if record else None
        rows.append(
            [
                one.name,
                one.defense,
                *category,
                one.net,
                *_cells(record, folder),
                "–" if static is None else percent(static),
            ]
        )
    head = ("name", "defense", "principle", "blocks", "network", *_AUDITED, "static network")
    return table(head, rows)


def _cells(record: AuditRecord | None, folder: Path) -> tuple[str, ...]:
    """The cells of the columns `_AUDITED`."""
    from saddlepoint.zoo.audited import objection

    if record is None:
        return (*("–",) * (len(_AUDITED) - 1), "not audited")
    against = objection(record, folder)
    return (
        f"L{record.p} {record.radius:g}",
        str(record.n),
        percent(record.clean_accuracy),
        "–" if against else percent(record.robust_accuracy),
        against or record.verdict,
    )


def _record(entry: Entry, folder: Path) -> dict[str, object]:
    """The record of a model: its training, its category and its audit.

    Accuracies come from the audit alone, so the check after training is left out. `objection` says
    why the robust accuracy of the audit must not be used; it is empty if it may be.
    """
    from saddlepoint.zoo import audited
    from saddlepoint.zoo.adaptive.taxonomy import surveyed
    from saddlepoint.zoo.audited import objection

    row = surveyed(entry.defense)
    audit = audited(entry.name, folder)
    training = {key: value for key, value in asdict(entry).items() if key != "check"}
    return {
        **training,
        "taxonomy": asdict(row) if row else None,
        "audit": {**asdict(audit), "objection": objection(audit, folder)} if audit else None,
    }


def _measure(entries: Sequence[Entry], folder: Path, images: int | None, *, quiet: bool) -> None:
    """Audit models and write their records."""
    from saddlepoint.cli.progress import AuditProgress
    from saddlepoint.cli.zoo_audit import measure
    from saddlepoint.zoo.audited import keep_audit

    for one in entries:
        out = Path("runs") / "zoo" / one.name
        with AuditProgress(errors(), folder=out, shown=not quiet) as bar:
            found = measure(one.name, folder, images=images, out=out, watch=bar)
        path = keep_audit(found, folder)
        if not quiet:
            say(f"{one.name}: {path}")
