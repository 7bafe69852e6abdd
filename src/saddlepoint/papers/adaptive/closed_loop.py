"""Section 3.3: closed-loop control under attacks that know more and more about it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import Adversary, Direct, FixedPoints, Transfer
from saddlepoint.gradients import BPDA
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import apgd, on_closed_loop, pgd
from saddlepoint.papers.adaptive.experiment import AdaptiveExperiment, AdaptiveSubject
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

CLEAN = "clean"
TRANSFER = "transfer PGD"
PGD_BPDA = "PGD + BPDA"
APGD_BPDA = "APGD + BPDA"
THROUGH = "APGD through all updates (ours)"
COLUMNS = (CLEAN, TRANSFER, PGD_BPDA, APGD_BPDA, THROUGH)
NOTES = (
    "BPDA: the gradient of the last pass, with the controls that were found as constants; PGD "
    "starts at the clean image, its steps are a quarter of the radius",
    "through all updates: the exact gradient, which includes the controls; the paper's authors "
    "replaced it",
    "static network: PGD and APGD with its own gradient",
)


def run(request: Request) -> Result:
    """Reproduce the numbers of Section 3.3."""
    experiment = AdaptiveExperiment.open(request)
    subject = experiment.subject("ClosedLoopControl")
    correct = _attack(experiment, subject)
    budgets = experiment.setting.attack_budgets
    static_attacks: list[Adversary] = [FixedPoints(), pgd(budgets), apgd(budgets)]
    static_clean, static_pgd, static_apgd = (
        correct_rate(episode) for episode in experiment.play_static(subject, static_attacks)
    )
    defended = tuple(
        accuracy_cell(correct[name], published.CLOSED_LOOP.get(name)) for name in COLUMNS
    )
    static = (
        accuracy_cell(static_clean),
        accuracy_cell(static_pgd, published.CLOSED_LOOP_STATIC),
        None,
        accuracy_cell(static_apgd),
        None,
    )
    reduced = experiment.reductions("ClosedLoopControl")
    rows = (Row(("closed-loop control", reduced), defended), Row(("static", reduced), static))
    title = f"Accuracy, %, on {subject.data} in {subject.space}"
    pairs = [(TRANSFER, PGD_BPDA), (PGD_BPDA, APGD_BPDA), (APGD_BPDA, THROUGH)]
    return experiment.result(
        "closed-loop",
        [Table(title, ("network", LABEL), COLUMNS, rows, len(subject.test.x), digits=1)],
        subjects=[subject],
        notes=[
            *NOTES,
            f"batches of {subject.batch}: as in the released code, the projections are centered at "
            "the mean of the batch, and the controls are selected by the loss of the batch",
        ],
        findings=[
            *(_change(correct, before, after) for before, after in pairs),
            _static_difference(correct[APGD_BPDA], static_apgd),
        ],
    )


def _attack(experiment: AdaptiveExperiment, subject: AdaptiveSubject) -> dict[str, Tensor]:
    """Return the correct rate [N] of the defense for each column."""
    budgets = experiment.setting.attack_budgets
    attacks: list[Adversary] = [
        FixedPoints(),
        Transfer(pgd(budgets), subject.static),
        replace(pgd(budgets, "PGD+BPDA"), rules={"control": BPDA()}),
        on_closed_loop(subject.defense, budgets),
        Direct("APGD", APGD(budgets.through_steps), loss=cross_entropy),
    ]
    episodes = experiment.play(subject, attacks)
    return {name: correct_rate(episode) for name, episode in zip(COLUMNS, episodes, strict=True)}


def _change(correct: dict[str, Tensor], before: str, after: str) -> str:
    first = correct[before].mean().item()
    second = correct[after].mean().item()
    paper = published.CLOSED_LOOP
    reported = ""
    if before in paper and after in paper:
        reported = f" (the paper: {paper[before]} to {paper[after]} %)"
    if first == second:
        change = f"stays at {100 * second:.1f} %"
    else:
        verb = "decreases" if second < first else "increases"
        change = f"{verb} from {100 * first:.1f} to {100 * second:.1f} %"
    return f"From {before} to {after} the accuracy {change}{reported}."


def _static_difference(defended: Tensor, static: Tensor) -> str:
    interval = difference_cell(defended, static).interval
    assert interval is not None
    low, high = interval
    return (
        f"The accuracy under APGD + BPDA minus that of the static network under APGD is between "
        f"{low:+.1f} and {high:+.1f} points; the paper: +5.6."
    )
