"""`saddlepoint bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption, TargetArgument
from saddlepoint.cli.console import FACTORY, aside, dump, examples, output, say, table
from saddlepoint.cli.options import audit_spec, some_audit_options, with_options
from saddlepoint.phrases import count, names

if TYPE_CHECKING:
    from saddlepoint.cli.bench_run import Job, Ratio

_KEYS = ("data.name", "data.split", "data.n", "data.root", "threat.norm", "threat.radius")


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "bench",
        cls=with_options(some_audit_options(*_KEYS)),
        epilog=examples(
            "saddlepoint bench zoo:digits-pgd --n 64",
            "saddlepoint bench net.py:make --data cifar10 --eps 8/255 --n 64 --rounds 9",
            note=f"{FACTORY} Peers that are installed are measured, too: torchattacks, "
            "pyautoattack, foolbox.",
        ),
    )(bench)


def bench(
    ctx: typer.Context,
    target: TargetArgument,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each attack.")] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are printed.")] = 5,
    json: JsonOption = False,
) -> None:
    """Compare the time of attacks with the bare time of their passes."""
    import torch
    from torch import nn

    from saddlepoint.attacks.radius import parse_radius
    from saddlepoint.attacks.spaces import Ball
    from saddlepoint.cli.bench_run import Job, measure
    from saddlepoint.data import load_data
    from saddlepoint.defenses import MultiExit, Plain
    from saddlepoint.runs.spec import NORMS
    from saddlepoint.runs.targets import resolve
    from saddlepoint.runs.work import torch_threads

    spec = audit_spec(target, ctx.obj)
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    with aside(), torch_threads(1):
        made, _ = resolve(target)
        net = made.net if isinstance(made, Plain) else made
        if not isinstance(net, nn.Module) or isinstance(made, MultiExit):
            raise typer.BadParameter(
                f"bench measures attacks on an ordinary network (nn.Module), and {target} is a "
                f"{type(made).__name__}. Its audit shows its cost: saddlepoint audit {target} "
                "--profile"
            )
        net = net.eval().requires_grad_(False)
        space = Ball(NORMS[spec.threat.norm], parse_radius(spec.threat.radius))
        job = Job(net, data.x, data.y, space, steps, rounds)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            ratios = list(measure(job))
    if json:
        dump(
            {
                "threat": str(space),
                "images": len(data.x),
                "steps": steps,
                "ratios": [asdict(one) for one in ratios],
            }
        )
        return
    _print(ratios, str(space), len(data.x), job)


def _print(ratios: Sequence[Ratio], threat: str, images: int, job: Job) -> None:
    from saddlepoint.cli.bench_run import PEERS

    rows = [
        [one.attack, one.library, f"{one.median:.2f}", f"{one.lowest:.2f}–{one.highest:.2f}"]
        for one in ratios
    ]
    output().print(table(("attack", "library", "median", "range"), rows))
    say(
        f"CPU time in units of a bare loop with the same passes: {threat}, "
        f"{count(images, 'image')}, {count(job.steps, 'step')}, one thread, "
        f"{count(job.rounds, 'round')}.",
        style="bold",
    )
    seen = {one.library for one in ratios}
    missing = [peer for peer in PEERS if peer not in seen]
    if missing:
        say(f"Not installed: {names(missing)}.")
