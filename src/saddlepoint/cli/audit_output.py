"""What `saddlepoint audit` prints: its plan before the attacks, and its result after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saddlepoint import phrases
from saddlepoint.cli.console import (
    STATES,
    STYLES,
    aside,
    comparison_lines,
    dump,
    errors,
    note,
    output,
    percent,
    say,
    table,
)
from saddlepoint.cli.execution import check_device
from saddlepoint.phrases import count, most_passes

if TYPE_CHECKING:
    from saddlepoint.audits import Audit, Plan
    from saddlepoint.runs.spec import RunSpec
    from saddlepoint.runs.work import Work


def print_plan(spec: RunSpec, folder: Path, *, json: bool) -> None:
    """Print what an audit would do.

    The specification goes to standard output, where it can be redirected to a file. The attacks
    and their cost go to standard error.
    """
    from saddlepoint.runs.spec import write
    from saddlepoint.runs.store import Store
    from saddlepoint.runs.work import load

    check_device(spec.device)
    with aside():
        work = load(spec)
        store = Store(folder)
    done = sum(store.has(key) for key in work.keys.values())
    if json:
        dump(_plan_record(spec, folder, work, done))
        return
    typer.echo(write(spec), nl=False)
    for choice in work.plan.choices:
        passes = most_passes(work.plan.most_passes(choice))
        note(f"{choice.name} ({passes} per image): {choice.reason}.")
    for line in _remedies(work.plan):
        note(line)
    names = phrases.names(adversary.name for adversary in work.plan.adversaries)
    note(
        f"{count(len(work.keys), 'cell')}: {count(len(work.plan.job.groups), 'group')} of images x "
        f"{names}."
    )
    note(f"{done} are finished in {folder}." if done else f"None is finished in {folder} yet.")


def _plan_record(spec: RunSpec, folder: Path, work: Work, done: int) -> dict[str, object]:
    return {
        "spec": spec.model_dump(mode="json"),
        "out": str(folder),
        "adversaries": [adversary.name for adversary in work.plan.adversaries],
        "cells": len(work.keys),
        "done": done,
        "choices": [
            {
                "name": choice.name,
                "reason": choice.reason,
                "passes": work.plan.most_passes(choice),
            }
            for choice in work.plan.choices
        ],
        "remedies": work.plan.remedy_passes,
        "cost": None if work.plan.cost is None else asdict(work.plan.cost),
    }


def print_attacks(plan: Plan) -> None:
    """Print what was recognized, the attacks with reasons, and their cost on standard error."""
    for found in plan.recognized:
        note(f"Recognized: {found.name} ({found.evidence}).")
    most = [plan.most_passes(choice) for choice in plan.choices]
    rows = [
        [choice.name, "–" if passes is None else str(passes), choice.reason]
        for choice, passes in zip(plan.choices, most, strict=True)
    ]
    errors().print(table(("attack", "passes", "reason"), rows))
    known = [passes for passes in most if passes is not None]
    if known:
        note(
            f"At most {sum(known)} forward and backward passes per image, with those that evaluate "
            "the clean image; an image that is misclassified early costs less."
        )
    for line in _remedies(plan):
        note(line)


def _remedies(plan: Plan) -> Iterator[str]:
    """What the audit may spend on symptoms. Attacks that the user chose get no remedies."""
    if plan.cost is not None:
        yield f"The whole audit: {plan.cost}."
    if plan.remedy_passes:
        yield (
            f"Of these, up to {count(plan.remedy_passes, 'pass')} per image are for remedies, if "
            "there are symptoms. They are spent on images that are still classified correctly: if "
            "half of the images are, each of these gets twice as many."
        )
    elif plan.budget == "quick":
        yield "The quick budget runs no remedies for symptoms."


def show(audit: Audit) -> None:
    """Print the warnings, the checklist, the comparisons, and then the table of attacks."""
    from saddlepoint.audits.verdict import State

    show_symptoms(audit, say)
    for item in audit.checklist:
        if item.state is not State.NOT_APPLICABLE:
            say(f"{item.state:8} {item.name}: {item.evidence}", style=STATES[item.state])
    for line in comparison_lines(audit.compared):
        say(line)
    rows = [["clean", percent(audit.clean_accuracy), percent(audit.clean_accuracy), *["–"] * 4]]
    for row in audit.rows:
        rows.append(
            [
                row.name,
                percent(row.robust_accuracy),
                percent(row.running),
                percent(max(row.gain, 0.0)),
                str(row.attacked),
                f"{row.forward:.1f} / {row.backward:.1f}",
                f"{row.seconds:.1f}",
            ]
        )
    head = (
        "attack",
        "accuracy",
        "worst case so far",
        "newly broken",
        "images attacked",
        "forward / backward",
        "seconds",
    )
    output().print(table(head, rows))


def show_symptoms(audit: Audit, write: Callable[[str, str], None]) -> None:
    """Print warnings and notes, which may change what the numbers mean.

    Args:
        audit: the audit.
        write: prints a line in a style: `say` or `note`.
    """
    for symptom in audit.symptoms:
        message = f"{symptom.level} ({symptom.name}): {symptom.message} {symptom.remedy}"
        write(message.rstrip(), STYLES[symptom.level])


def show_profile(audit: Audit) -> None:
    """Print seconds, and passes per image, by stage and by attack."""
    head = ("stage or attack", "seconds", "forward", "backward")
    output().print(table(head, [list(line) for line in audit.cost.lines()]))
    output().print(str(audit.engine))
