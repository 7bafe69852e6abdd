"""`saddlepoint probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from saddlepoint.cli.arguments import JsonOption, TargetArgument
from saddlepoint.cli.console import FACTORY, aside, dump, examples, output, say, table
from saddlepoint.cli.execution import check_device
from saddlepoint.cli.options import audit_spec, some_audit_options, with_options

if TYPE_CHECKING:
    from saddlepoint.audits.probes.traits import Trait

_ANSWERS = {True: "yes", False: "no", None: "–"}


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "probe",
        cls=with_options(
            some_audit_options(
                "data.name", "data.split", "data.root", "threat.norm", "threat.radius", "device"
            )
        ),
        epilog=examples(
            "saddlepoint probe zoo:digits-exits",
            "saddlepoint probe net.py:make --data cifar10",
            "saddlepoint probe net.py:make --json | jq '.[] | select(.present)'",
            note=f"{FACTORY} The target is evaluated on the first 16 images in different orders, "
            "one by one and as a batch, with and without gradients, and early exits and branches "
            "inside it are searched. It is not attacked. For each "
            "property the table says whether it was measured (yes, no, or – if it could not be "
            "measured), what the target declares (a plain network declares nothing), the "
            "confidence, and the evidence. An audit selects its attacks by these properties.",
        ),
    )(probe)


def probe(ctx: typer.Context, target: TargetArgument, json: JsonOption = False) -> None:
    """Measure properties of a target that matter for attacks, without attacking it.

    Is it randomized? Do the images of a batch influence each other? Does it adapt? Are its
    gradients masked? Each property is compared with what the target declares.
    """
    from saddlepoint.api import probe as measure
    from saddlepoint.audits.probes.probe_target import ROWS
    from saddlepoint.audits.target.admission import placed
    from saddlepoint.data import load_data
    from saddlepoint.runs.targets import resolve
    from saddlepoint.runs.threat_specs import threat

    spec = audit_spec(target, {**ctx.obj, "data": {**ctx.obj["data"], "n": ROWS}})
    check_device(spec.device)
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    with aside():
        found, _ = resolve(target)
        traits = measure(
            placed(found, spec.device),
            data.x.to(spec.device),
            data.y.to(spec.device),
            threat=threat(spec.threat),
        )
    if json:
        dump(traits.record())
        return
    head = ("property", "measured", "declared", "confidence", "evidence")
    output().print(table(head, [_row(trait) for trait in traits]))
    names = [trait.name for trait in traits if trait.present]
    say(f"Measured: {', '.join(names) or 'none of these properties'}.", style="bold")
    for trait in traits.denied:
        say(
            f"{target} declares that it does not have this property: {trait.name}. "
            f"{trait.evidence}.",
            style="red",
        )


def _row(trait: Trait) -> list[str]:
    places = f" ({', '.join(trait.places)})" if trait.places else ""
    return [
        trait.name,
        _ANSWERS[trait.present],
        _ANSWERS[trait.declared],
        "–" if trait.present is None else f"{trait.confidence:.2f}",
        trait.evidence + places,
    ]
