"""`saddlepoint audit` and `saddlepoint run`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import TargetArgument
from saddlepoint.cli.console import FACTORY, aside, dump, errors, examples, note, say
from saddlepoint.cli.execution import (
    AddressOption,
    ExecutorOption,
    SandboxOption,
    TimeoutOption,
    WorkersOption,
    choose_executor,
    run,
    use_sandbox,
)
from saddlepoint.cli.folders import default_folder
from saddlepoint.cli.options import audit_options, audit_spec, with_options
from saddlepoint.cli.requirements import as_fraction, check_requirements

if TYPE_CHECKING:
    from saddlepoint.audits import Audit
    from saddlepoint.runs.automatic import Automatic
    from saddlepoint.runs.cache import Watch
    from saddlepoint.runs.executors import Executor
    from saddlepoint.runs.spec import RunSpec

_output = partial(typer.Option, rich_help_panel="Output")
_Live = Annotated[
    bool,
    _output(
        "--watch",
        help="While the audit runs, write FOLDER/live.html, a page that reloads itself.",
    ),
]
_DryRun = Annotated[
    bool,
    _output(
        "--dry-run",
        help="Print the specification, the attacks, the reasons for them and their cost. "
        "Do not attack.",
    ),
]
_Json = Annotated[bool, _output("--json", help="Print the record as JSON and nothing else.")]
_Quiet = Annotated[
    bool,
    _output(
        "--quiet",
        help="Print only the verdict, and warnings and notes about it: no progress and no tables.",
    ),
]
_Profile = Annotated[
    bool,
    _output(
        "--profile",
        help="Print seconds and passes by stage and by attack. --json always contains them.",
    ),
]
_ci = partial(typer.Option, rich_help_panel="Continuous integration")
_FailUnder = Annotated[
    float | None,
    _ci(
        "--fail-under",
        callback=as_fraction,
        metavar="ACCURACY",
        help="Exit with code 1 if robust accuracy is below this number, such as 0.45 for 45 %.",
        show_default="only a refuted --claim gives code 1",
    ),
]
_Junit = Annotated[
    Path | None, _ci("--junit", metavar="FILE", help="Write the result as a JUnit file.")
]
_Summary = Annotated[
    Path | None,
    _ci(
        "--summary",
        metavar="FILE",
        help="Append a Markdown summary to this file, such as $GITHUB_STEP_SUMMARY.",
    ),
]


def add(app: typer.Typer) -> None:
    """Add both commands to the application."""
    app.command(
        "audit",
        cls=with_options(audit_options),
        epilog=examples(
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
            "saddlepoint audit net.py:make --data cifar10 --n 1000 --budget thorough",
            "saddlepoint audit my.package.models:robust --data images.npz --norm l2",
            "saddlepoint audit net.py:make --attacks apgd-ce,apgd-t,fab-t,square",
            "saddlepoint audit zoo:digits-dent --eps 0.15 --order by-label",
            "saddlepoint audit net.py:make --dry-run > spec.toml",
            "saddlepoint audit net.py:make --json | jq .robust_accuracy",
            "saddlepoint audit net.py:make --claim 0.5 --fail-under 0.45 --junit audit.xml",
            note=f"{FACTORY} An audit that was stopped continues when the same command is given "
            "again. The verdict is about the estimate: 'credible' if every item of the checklist "
            "that applies was run and passed; 'overstated' if a claimed or reported accuracy is "
            "refuted; otherwise 'inconclusive', with the reasons. The exit code is 1 if --claim is "
            "refuted or --fail-under is not met, and 2 after an error.",
        ),
    )(audit)
    app.command(
        "run",
        epilog=examples(
            "saddlepoint audit net.py:make --dry-run > spec.toml",
            "saddlepoint run spec.toml",
            "saddlepoint run spec.toml --workers 8 --out runs/paper",
        ),
    )(run_file)


def audit(
    ctx: typer.Context,
    target: TargetArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results and the report.",
            metavar="FOLDER",
            show_default="runs/TARGET-NORM-RADIUS-DATA-N-BUDGET",
        ),
    ] = None,
    executor: ExecutorOption = None,
    workers: WorkersOption = None,
    timeout: TimeoutOption = None,
    address: AddressOption = None,
    sandbox: SandboxOption = False,
    watch: _Live = False,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
    profile: _Profile = False,
    fail_under: _FailUnder = None,
    junit: _Junit = None,
    summary: _Summary = None,
) -> None:
    """Attack a model and estimate its robust accuracy.

    The result is an upper bound on the robust accuracy with a confidence interval, a checklist,
    warnings, and a verdict on how far the estimate can be trusted.
    """
    spec = audit_spec(target, ctx.obj)
    folder = out or default_folder(
        spec.target,
        spec.threat.norm,
        spec.threat.radius,
        spec.data.name,
        spec.data.n,
        spec.budget,
    )
    if dry_run:
        _dry_run(spec, folder, json=json)
        return
    if sandbox:
        use_sandbox(folder, (junit, summary), ray=executor == "ray" or address is not None)
    chosen = choose_executor(executor, workers, address, timeout)
    result = _run(spec, folder, chosen, live=watch, json=json, quiet=quiet)
    if profile and not json:
        _print_profile(result)
    check_requirements(result, fail_under, junit, summary)


def run_file(
    spec: Annotated[
        Path,
        typer.Argument(
            help="A TOML file with target, data, threat model and attacks.", metavar="SPEC"
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the results and the report.",
            metavar="FOLDER",
            show_default="runs/SPEC",
        ),
    ] = None,
    executor: ExecutorOption = None,
    workers: WorkersOption = None,
    timeout: TimeoutOption = None,
    address: AddressOption = None,
    sandbox: SandboxOption = False,
    watch: _Live = False,
    dry_run: _DryRun = False,
    json: _Json = False,
    quiet: _Quiet = False,
    profile: _Profile = False,
    fail_under: _FailUnder = None,
    junit: _Junit = None,
    summary: _Summary = None,
) -> None:
    """Run the audit that a specification file describes."""
    from saddlepoint.runs.spec import read

    requested = read(spec)
    folder = out or Path("runs") / spec.stem
    if dry_run:
        _dry_run(requested, folder, json=json)
        return
    if sandbox:
        use_sandbox(folder, (junit, summary), ray=executor == "ray" or address is not None)
    chosen = choose_executor(executor, workers, address, timeout)
    result = _run(requested, folder, chosen, live=watch, json=json, quiet=quiet)
    if profile and not json:
        _print_profile(result)
    check_requirements(result, fail_under, junit, summary)


def _dry_run(spec: RunSpec, folder: Path, *, json: bool) -> None:
    from saddlepoint.cli.audit_output import print_plan

    print_plan(spec, folder, json=json)


def _print_profile(result: Audit) -> None:
    from saddlepoint.cli.audit_output import show_profile

    show_profile(result)


def _run(
    spec: RunSpec, folder: Path, by: Executor | Automatic, *, live: bool, json: bool, quiet: bool
) -> Audit:
    """Run the audit, print its result and return it."""
    from saddlepoint.cli.audit_output import show, show_symptoms

    progress = _progress(folder, live=live, shown=not (json or quiet), messages=not json)
    with aside(), progress as watch:
        result = run(spec, folder, by=by, watch=watch)
    if json:
        dump(result.record())
        return result
    if quiet:
        show_symptoms(result, note)
    else:
        show(result)
    say(f"{result.target}, {result.threat.partition(',')[0]}: {result.summary()}", style="bold")
    say(f"Report: {folder / 'report.html'}")
    return result


@contextmanager
def _progress(folder: Path, *, live: bool, shown: bool, messages: bool) -> Iterator[Watch]:
    """A progress bar on the terminal and, with `live`, a page that is updated."""
    from saddlepoint.cli.progress import AuditProgress

    with AuditProgress(errors(), folder=folder, shown=shown, messages=messages) as bar:
        if not live:
            yield bar
            return
        from saddlepoint.reports.live import PAGE, LivePage
        from saddlepoint.runs.watches import Watches

        bar.say(
            f"Follow the audit in a browser: {folder / PAGE}, or "
            f"`saddlepoint view {shlex.quote(str(folder))}`."
        )
        with LivePage(folder) as page:
            yield Watches((bar, page))
