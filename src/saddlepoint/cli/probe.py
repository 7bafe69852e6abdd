"""`saddlepoint probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import FACTORY, aside, dump, examples, output, say, table
from saddlepoint.cli.options import USUAL_RADIUS, Norm, images, refuse_missing_device

if TYPE_CHECKING:
    from saddlepoint.audits.probes.traits import Trait

_WORDS = {True: "yes", False: "no", None: "–"}


def add(app: typer.Typer) -> None:
    app.command(
        "probe",
        epilog=examples(
            "saddlepoint probe zoo:digits-exits",
            "saddlepoint probe net.py:make --data cifar10",
            "saddlepoint probe net.py:make --json | jq '.[] | select(.present)'",
            note=f"{FACTORY} Nothing is attacked: the first 16 images are asked about, in this order and that, alone and together, "
            "with and without gradients. A trait is found (yes), is not (no), or cannot be told (–). Beside it: what the target "
            "says of itself (a net says nothing), how sure the finding is, and what was seen. An audit chooses its attacks by it.",
        ),
    )(probe)


def probe(
    target: Annotated[
        str,
        typer.Argument(
            help="file.py:factory, package.module:factory or zoo:NAME.", metavar="TARGET"
        ),
    ],
    data: Annotated[
        str, typer.Option(help="A name (`saddlepoint data list`), a .npz file or file.py:function.")
    ] = "digits",
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
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    root: Annotated[
        Path | None, typer.Option(help="The folder that holds the data.", metavar="FOLDER")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the traits as JSON, and nothing else.")
    ] = False,
) -> None:
    """Find out what a target is like: random, coupled, remembering, hiding its gradients? And whether it says so."""
    from saddlepoint.attacks.spaces import Ball
    from saddlepoint.audits.probes.probe import probe as measure
    from saddlepoint.audits.probes.subject import ROWS
    from saddlepoint.audits.target.admission import placed
    from saddlepoint.data import load_data
    from saddlepoint.runs.spec import NORMS, DataSpec, radius
    from saddlepoint.runs.targets import resolve

    refuse_missing_device(device)
    space = Ball(NORMS[norm.value], radius(eps or USUAL_RADIUS[norm]))
    asked = DataSpec.model_validate(images(data, ROWS, root))
    shown = load_data(asked.name, n=asked.n, root=asked.root)
    with aside():
        found, _ = resolve(target)
        traits = measure(
            placed(found, device), shown.x.to(device), shown.y.to(device), threat=space
        )
    if json:
        dump(traits.record())
        return
    output().print(
        table(
            ("trait", "found", "declared", "confidence", "evidence"),
            [_row(trait) for trait in traits],
        )
    )
    names = [trait.name for trait in traits if trait.present]
    say(f"Found: {', '.join(names)}." if names else "Nothing of this was found.", style="bold")
    for trait in traits.denied:
        say(f"{target} declares that it has not: {trait.name}. {trait.evidence}.", style="red")


def _row(trait: Trait) -> list[str]:
    places = f" ({', '.join(trait.places)})" if trait.places else ""
    return [
        trait.name,
        _WORDS[trait.present],
        _WORDS[trait.declared],
        "–" if trait.present is None else f"{trait.confidence:.2f}",
        trait.evidence + places,
    ]
