"""`saddlepoint audit` and `saddlepoint run`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saddlepoint.cli.console import (
    FACTORY,
    STATES,
    STYLES,
    aside,
    beside,
    errors,
    examples,
    output,
    percent,
    say,
    table,
    tell,
)
from saddlepoint.cli.options import (
    USUAL_RADIUS,
    Access,
    Budget,
    Means,
    Norm,
    Order,
    Randomness,
    Rounds,
    Victims,
    by_name,
    default_folder,
    images,
    refuse_missing_device,
    run,
)
from saddlepoint.cli.options import executor as chosen

if TYPE_CHECKING:
    from saddlepoint.audits import Audit, Plan
    from saddlepoint.runs.cache import Watch
    from saddlepoint.runs.executors import Executor
    from saddlepoint.runs.spec import RunSpec

# Panels of the help page.
_attacker = partial(typer.Option, rich_help_panel="The attacker")
_learner = partial(
    typer.Option, rich_help_panel="Against a defense that learns from what it is asked"
)
_means = partial(typer.Option, rich_help_panel="How it is computed")
_shown = partial(typer.Option, rich_help_panel="What is printed")

_Claim = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="A robust accuracy that somebody claims, as 0.62: is it refuted?",
        show_default="none",
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Where record and report are written.",
        metavar="FOLDER",
        show_default="runs/TARGET-NORM-RADIUS",
    ),
]
_Attacks = Annotated[
    str | None,
    _attacker(
        metavar="NAMES", help="Such as apgd-ce,apgd-t,square: sent instead of those that are chosen.",
        show_default="chosen by what the target is",
    ),
]  # fmt: skip
_Access = Annotated[Access, _attacker(help="What the attacker is shown.", case_sensitive=False)]
_Randomness = Annotated[
    Randomness,
    _attacker(
        help="A random defense's: unknown, known, or tossed once for all answers.",
        case_sensitive=False,
    ),
]
_Rounds = Annotated[
    Rounds, _learner(help="Batches of a stream, or all of it as one.", case_sensitive=False)
]
_Hidden = Annotated[
    bool, _learner("--hidden-state", help="Nobody sees what an online defense has become.")
]
_Order = Annotated[Order, _learner(help="Who orders the stream, and how.", case_sensitive=False)]
_Window = Annotated[
    int | None, _learner(min=1, help="Images ordered together.", show_default="256, if ordered")
]
_Control = Annotated[float, _learner(metavar="SHARE", help="The attacker's share of each batch.")]
_Victims = Annotated[
    Victims,
    _learner(
        help="Whose wrong answers count, where --controlled-fraction is below 1.",
        case_sensitive=False,
    ),
]
_OnlineQueries = Annotated[
    bool,
    _learner(
        "--online-queries", help="An online defense is asked itself, and learns from every query."
    ),
]
_Seed = Annotated[int, _means(help="Every random number follows from it.")]
_BatchSize = Annotated[int, _means(min=1, help="Images attacked together.")]
_Device = Annotated[str, _means(help="cpu, cuda, cuda:1, mps.")]
_Executor = Annotated[
    Means | None,
    _means(
        help="Who computes: this process, several, or a Ray cluster.",
        show_default="serial",
        case_sensitive=False,
    ),
]
_Workers = Annotated[
    int | None, _means(min=1, help="How many processes.", show_default="one per core")
]
_Address = Annotated[
    str | None,
    _means(metavar="HOST:PORT", help="The Ray cluster to join.", show_default="one of its own"),
]
_Watched = Annotated[
    bool,
    _shown(
        "--watch",
        help="Write FOLDER/live.html while the run goes on: a page that loads itself again.",
    ),
]
_DryRun = Annotated[
    bool,
    _shown(
        "--dry-run",
        help="Print the specification, which attacks it sends, why and at what price, and stop before them.",
    ),
]
_Json = Annotated[bool, _shown("--json", help="Print the record as JSON, and nothing else.")]
_Quiet = Annotated[bool, _shown("--quiet", help="No progress, no table: the verdict alone.")]


def add(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog=examples(
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
            "saddlepoint audit net.py:make --data cifar10 --n 1000 --budget thorough",
            "saddlepoint audit my.package.models:robust --data images.npz --norm l2",
            "saddlepoint audit net.py:make --attacks apgd-ce,apgd-t,fab-t,square",
            "saddlepoint audit zoo:digits-dent --eps 0.15 --order by-label",
            "saddlepoint audit net.py:make --dry-run > spec.toml",
            "saddlepoint audit net.py:make --json | jq .robust_accuracy",
            note=f"{FACTORY} A run that was stopped goes on when the command is given again. The number is an upper bound: the "
            "verdict is 'holds so far' if every item of a checklist that applies was run and passed, 'overstated' if a number that "
            "somebody relies on is refuted, else 'cannot be told', and the reasons are given.",
        ),
    )(audit)
    app.command(
        "run",
        epilog=examples(
            "saddlepoint run spec.toml", "saddlepoint run spec.toml --workers 8 --out runs/paper"
        ),
    )(run_file)


def audit(
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
            min=1,
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
    budget: Annotated[
        Budget,
        typer.Option(
            help="How much the attacks may cost; --dry-run says how much.", case_sensitive=False
        ),
    ] = Budget.standard,
    claim: _Claim = None,
    out: _Out = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder that holds the data.", metavar="FOLDER")
    ] = None,
    attacks: _Attacks = None,
    access: _Access = Access.gradient,
    randomness: _Randomness = Randomness.private,
    rounds: _Rounds = Rounds.many,
    hidden_state: _Hidden = False,
    order: _Order = Order.natural,
    window: _Window = None,
    controlled_fraction: _Control = 1.0,
    victims: _Victims = Victims.all,
    online_queries: _OnlineQueries = False,
    seed: _Seed = 0,
    batch_size: _BatchSize = 128,
    device: _Device = "cpu",
    executor: _Executor = None,
    workers: _Workers = None,
    address: _Address = None,
    watch: _Watched = False,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Attack a model and say how robust it is: an upper bound, with an interval, a checklist, and what the number is worth."""
    from saddlepoint.runs.spec import parse, radius

    eps = eps or USUAL_RADIUS[norm]
    radius(eps)
    threat = {
        "norm": norm.value, "eps": eps, "access": access.value, "randomness": randomness.value, "rounds": rounds.value, "order": order.value,
        "state_visible": not hidden_state, "window": window, "controlled_fraction": controlled_fraction, "victims": victims.value, "online_queries": online_queries,
    }  # fmt: skip
    asked: dict[str, Any] = {
        "target": target, "data": images(data, n, root), "threat": threat, "budget": budget.value,
        "seed": seed, "batch_size": batch_size, "device": device, "attacks": by_name(attacks),
        "claim": claim,
    }  # fmt: skip
    spec = parse(asked, "what was asked for")
    place = out or default_folder(target, norm, eps)
    if dry_run:
        _plan(spec, place, json=json)
        return
    _run(spec, place, chosen(executor, workers, address), page=watch, json=json, quiet=quiet)


def run_file(
    spec: Annotated[
        Path,
        typer.Argument(
            help="A specification: target, data, threat, attacks (TOML).", metavar="SPEC"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write.", metavar="FOLDER", show_default="runs/SPEC"),
    ] = None,
    executor: _Executor = None,
    workers: _Workers = None,
    address: _Address = None,
    watch: _Watched = False,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Run the audit that a file specifies."""
    from saddlepoint.runs.spec import read

    asked = read(spec)
    place = out or Path("runs") / spec.stem
    if dry_run:
        _plan(asked, place, json=json)
        return
    _run(asked, place, chosen(executor, workers, address), page=watch, json=json, quiet=quiet)


def _plan(spec: RunSpec, out: Path, *, json: bool) -> None:
    """The specification on standard output, where it can be kept as a file; what it costs on standard error."""
    from saddlepoint.runs.spec import write
    from saddlepoint.runs.store import Store
    from saddlepoint.runs.work import load

    refuse_missing_device(spec.device)
    with aside():
        work = load(spec)
        store = Store(out)
    names = [adversary.name for adversary in work.plan.adversaries]
    done = sum(store.has(key) for key in work.keys.values())
    if json:
        import json as notation

        found = {
            "spec": spec.model_dump(mode="json"),
            "out": str(out),
            "adversaries": names,
            "cells": len(work.keys),
            "done": done,
        }
        found["choices"] = [
            {"name": c.name, "reason": c.reason, "passes": c.passes} for c in work.plan.choices
        ]
        found["remedies"] = work.plan.allowance
        typer.echo(notation.dumps(found, indent=1))
        return
    typer.echo(write(spec), nl=False)
    for choice in work.plan.choices:
        tell(
            f"{choice.name} (at most {choice.passes or 'unknown'} passes per image): {choice.reason}."
        )
    for line in _remedies(work.plan):
        tell(line)
    tell(
        f"{len(work.keys)} cells: {len(work.plan.job.groups)} groups of images x {', '.join(names)}."
    )
    tell(f"{done} are finished in {out}." if done else f"None is finished in {out} yet.")


def _announce(spec: RunSpec) -> None:
    """Who is sent, why, and at what price: on standard error, before anything is spent."""
    from saddlepoint.runs.work import load

    refuse_missing_device(spec.device)
    plan = load(spec).plan
    choices = plan.choices
    rows = [
        [choice.name, "–" if choice.passes is None else str(choice.passes), choice.reason]
        for choice in choices
    ]
    errors().print(table(("attack", "passes", "why"), rows))
    known = [choice.passes for choice in choices if choice.passes is not None]
    if known:
        tell(
            f"At most {sum(known)} forward and backward passes per image; one that falls early costs less."
        )
    for line in _remedies(plan):
        tell(line)


def _remedies(plan: Plan) -> Iterator[str]:
    """What is tried for symptoms, before they are known; attacks that were asked for are sent as they are."""
    if plan.allowance:
        yield f"Up to {plan.allowance} more passes per image for remedies, if symptoms ask for them, spent on images that stand."
    elif plan.budget == "quick":
        yield "No remedies are tried for symptoms at this budget."


def _run(spec: RunSpec, out: Path, by: Executor, *, page: bool, json: bool, quiet: bool) -> None:
    shown = not (json or quiet)
    with aside():
        if shown:
            _announce(spec)
        with _watching(out, page=page, shown=shown) as watch:
            done = run(spec, out, by=by, watch=watch)
    if json:
        import json as notation

        typer.echo(notation.dumps(done.record(), indent=1))
        return
    if not quiet:
        show(done)
    say(f"{done.target}, {done.threat.partition(',')[0]}: {done.summary()}", style="bold")
    say(f"Report: {out / 'report.html'}")


@contextmanager
def _watching(out: Path, *, page: bool, shown: bool) -> Iterator[Watch]:
    """A bar on the terminal, and a page if one was asked for."""
    from saddlepoint.cli.progress import Watching

    with Watching(errors(), folder=out, shown=shown) as bar:
        if not page:
            yield bar
            return
        from saddlepoint.reports.live import PAGE, Both, LivePage

        bar.say(
            f"Watch it in a browser: {out / PAGE}, or `saddlepoint view {shlex.quote(str(out))}`."
        )
        with LivePage(out) as online_queries:
            yield Both(bar, online_queries)


def show(audit: Audit) -> None:
    """What speaks against the number, the checklist, then the numbers."""
    for symptom in audit.symptoms:
        told = f"{symptom.level}: {symptom.name}. {symptom.message}"
        say(f"{told} {symptom.remedy}".rstrip(), style=STYLES[symptom.level])
    for item in audit.checklist:
        if item.state != "does not apply":
            say(f"{item.state:8} {item.name}: {item.evidence}", style=STATES[item.state])
    for line in beside(audit.compared):
        say(line)
    rows = [["clean", percent(audit.clean_accuracy), percent(audit.clean_accuracy), *["–"] * 4]]
    for row in audit.rows:
        passes = f"{row.forward:.1f} / {row.backward:.1f}"
        taken = f"{100 * row.gain:.1f}"
        seconds = f"{row.seconds:.1f}"
        rows.append(
            [
                row.name,
                percent(row.robust_accuracy),
                percent(row.running),
                taken,
                str(row.attacked),
                passes,
                seconds,
            ]
        )
    head = (
        "attack",
        "accuracy",
        "worst case",
        "taken",
        "attacked",
        "forward / backward",
        "seconds",
    )
    output().print(table(head, rows))
