"""Table 2: SODEF under points transferred from its static network, in two norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import CleanCopies, Episode, FixedPoints, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import auto, on_sodef, through_sodef
from saddlepoint.papers.adaptive.experiment import (
    SODEF_SOLVER,
    AdaptiveExperiment,
    AdaptiveSubject,
)
from saddlepoint.papers.adaptive.findings import compared_with_static, points
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import (
    accuracy_cell,
    by_interval,
    correct_rate,
    difference_cell,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = (
    "clean",
    "static, AutoAttack",
    "AutoAttack (clean copies), transferred",
    "APGD, transferred",
    "APGD through the ODE (ours)",
    "worst case",
)
COPIES_GAP = "clean copies minus static"
COPIES_EXCESS = "clean copies minus APGD, transferred"
TRANSFER_GAP = "APGD, transferred, minus static"
ODE_GAP = "APGD through the ODE minus APGD, transferred"
WORST_GAP = "worst case minus static"
DIFFERENCES = (COPIES_GAP, COPIES_EXCESS, TRANSFER_GAP, ODE_GAP, WORST_GAP)
NOTES = (
    "APGD, transferred: points of maximal cross-entropy, margin and targeted DLR of the static "
    "network; the strongest point per image counts",
    "static: the static network under AutoAttack; worst case: SODEF on the worst of all points of "
    "its row, clean images included",
    "through the ODE: the same three attacks on the defense itself, with exact gradients of the "
    "solver's steps",
    SODEF_SOLVER,
)


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    experiment = AdaptiveExperiment.open(request)
    subject = experiment.subject("SODEF")
    spaces = {"Linf": subject.space, "L2": experiment.setting.l2}
    rows = [_row(experiment, subject, norm, space) for norm, space in spaces.items()]
    return experiment.result(
        "table-2",
        assemble("Robust accuracy, %", rows, len(subject.test.x)),
        subjects=[subject],
        notes=NOTES,
        findings=[text for row in rows for text in findings(row)],
    )


@dataclass(frozen=True)
class NormRows:
    """The rows of one norm, one per table."""

    accuracies: Row
    differences: Row


def assemble(title: str, rows: Sequence[NormRows], images: int) -> list[Table]:
    """Make the table of accuracies and that of their differences."""
    labels = ("norm", "perturbations", LABEL)
    paired = "Differences of robust accuracies, points, paired by image"
    accuracies = tuple(one.accuracies for one in rows)
    differences = tuple(one.differences for one in rows)
    return [
        Table(title, labels, COLUMNS, accuracies, images, digits=1),
        Table(paired, labels[:1], DIFFERENCES, differences, images, digits=1),
    ]


def _row(
    experiment: AdaptiveExperiment, subject: AdaptiveSubject, norm: str, space: Ball
) -> NormRows:
    budgets = experiment.setting.attack_budgets
    (static_episode,) = experiment.play_static(subject, [auto(budgets)], space=space)
    attacks = [
        Transfer(CleanCopies(auto(budgets)), subject.static),
        on_sodef(subject.defense, budgets),
        through_sodef(budgets),
        FixedPoints(),
    ]
    episodes = experiment.play(subject, attacks, threat=replace(subject.threat, space=space))
    labels = (norm, str(space), experiment.reductions("SODEF"))
    return norm_rows(labels, correct_rate(static_episode), episodes, subject.worst(episodes))


def norm_rows(
    labels: tuple[str, str, str], static: Tensor, episodes: Sequence[Episode], worst: Tensor
) -> NormRows:
    """Make the rows of a norm, with the paper's numbers.

    Args:
        labels: norm ("Linf" or "L2"), perturbations and reduced hyper-parameters.
        static: [N] whether the static network is correct under AutoAttack.
        episodes: SODEF under AutoAttack's points with clean copies, transferred APGD, APGD through
            the ODE, and on clean images.
        worst: [N] whether SODEF is correct under all of these.
    """
    paper_static, paper_copies, paper_apgd = published.TABLE_2[labels[0]]
    copies, transferred, through, clean = (correct_rate(episode) for episode in episodes)
    accuracies = (
        accuracy_cell(clean),
        accuracy_cell(static, paper_static),
        accuracy_cell(copies, paper_copies),
        accuracy_cell(transferred, paper_apgd),
        accuracy_cell(through),
        accuracy_cell(worst),
    )
    differences = (
        difference_cell(copies, static, paper_copies - paper_static),
        difference_cell(copies, transferred, paper_copies - paper_apgd),
        difference_cell(transferred, static, paper_apgd - paper_static),
        difference_cell(through, transferred),
        difference_cell(worst, static),
    )
    return NormRows(Row(labels, accuracies), Row(labels[:1], differences))


def findings(rows: NormRows) -> list[str]:
    """State how the attacks in a norm compare, and SODEF with its static network."""
    (norm,) = rows.differences.labels
    cells = dict(zip(DIFFERENCES, rows.differences.cells, strict=True))
    seems = compared_with_static("SODEF", cells[COPIES_GAP])
    excess = _compared(cells[COPIES_EXCESS], "higher than", "lower than")
    through = _compared(cells[ODE_GAP], "weaker than", "stronger than")
    return [
        f"{norm}: under AutoAttack's points with clean copies {seems}.",
        f"{norm}: the accuracy under AutoAttack's points with clean copies is {excess} that under "
        f"points of maximal loss ({points(_known(cells[COPIES_EXCESS]))}).",
        f"{norm}: under points of maximal loss {compared_with_static('SODEF', cells[TRANSFER_GAP])}"
        ".",
        f"{norm}: the attack with the exact gradient through the ODE is {through} transferred "
        f"points ({points(_known(cells[ODE_GAP]))}). Under all attacks "
        f"{compared_with_static('SODEF', cells[WORST_GAP])}.",
    ]


def _compared(difference: Cell | None, above: str, below: str) -> str:
    low, high = _known(difference).interval or (0.0, 0.0)
    same = "not distinguishable from"
    return by_interval(low, high, above=above, below=below, inconclusive=same)


def _known(cell: Cell | None) -> Cell:
    assert cell is not None
    return cell
