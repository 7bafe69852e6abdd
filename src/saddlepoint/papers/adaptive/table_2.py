"""Table 2: SODEF under points transferred from its static network, in two norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

COLUMNS = (
    "static, AutoAttack",
    "AutoAttack (clean copies), transferred",
    "APGD, transferred",
    "APGD, transferred, minus static",
    "APGD through the ODE (ours)",
    "worst case minus static",
    "clean",
)
NOTES = (
    "APGD, transferred: points of maximal cross-entropy, margin and targeted DLR of the static "
    "network; the strongest point per image counts",
    "through the ODE: the same three attacks on the defense itself, with exact gradients of the "
    "solver's steps",
    SODEF_SOLVER,
)


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    experiment = AdaptiveExperiment.open(request)
    subject = experiment.subject("SODEF")
    spaces = {"Linf": subject.space, "L2": experiment.setting.l2}
    rows = {norm: _row(experiment, subject, norm, space) for norm, space in spaces.items()}
    return experiment.result(
        "table-2",
        [assemble("Robust accuracy, %", tuple(rows.values()), len(subject.test.x))],
        subjects=[subject],
        notes=NOTES,
        findings=[text for norm, row in rows.items() for text in findings(norm, row)],
    )


def assemble(title: str, rows: tuple[Row, ...], images: int) -> Table:
    """Make the table of rows with the labels norm, perturbations and reduced hyper-parameters."""
    return Table(title, ("norm", "perturbations", LABEL), COLUMNS, rows, images, digits=1)


def _row(experiment: AdaptiveExperiment, subject: AdaptiveSubject, norm: str, space: Ball) -> Row:
    budgets = experiment.setting.attack_budgets
    (static_episode,) = experiment.play_static(subject, [auto(budgets)], space=space)
    attacks = [
        Transfer(CleanCopies(auto(budgets)), subject.static),
        on_sodef(subject.defense, budgets),
        through_sodef(budgets),
        FixedPoints(),
    ]
    episodes = experiment.play(subject, attacks, threat=replace(subject.threat, space=space))
    cells = row_cells(norm, correct_rate(static_episode), episodes, subject.worst(episodes))
    return Row((norm, str(space), experiment.reductions("SODEF")), cells)


def row_cells(
    norm: str, static: Tensor, episodes: Sequence[Episode], worst: Tensor
) -> tuple[Cell, ...]:
    """Make the cells of a row, with the paper's numbers.

    Args:
        norm: "Linf" or "L2".
        static: [N] whether the static network is correct under AutoAttack.
        episodes: SODEF under AutoAttack's points with clean copies, transferred APGD, APGD through
            the ODE, and on clean images.
        worst: [N] whether SODEF is correct under all of these.
    """
    papers = published.TABLE_2[norm]
    copies, transferred, through, clean = (correct_rate(episode) for episode in episodes)
    accuracies = [
        accuracy_cell(correct, paper)
        for correct, paper in zip((static, copies, transferred), papers, strict=True)
    ]
    return (
        *accuracies,
        difference_cell(transferred, static, papers[2] - papers[0]),
        accuracy_cell(through),
        difference_cell(worst, static),
        accuracy_cell(clean),
    )


def findings(norm: str, row: Row) -> list[str]:
    """State how the attacks of a row compare, and SODEF with its static network."""
    _, copies, transferred, gap, through, worst_gap, _ = row.cells
    assert copies is not None
    assert transferred is not None
    assert through is not None
    weaker = "are weaker" if copies.mean > transferred.mean else "are not weaker"
    stronger = "is stronger" if through.mean < transferred.mean else "is not stronger"
    return [
        f"{norm}: AutoAttack's points with clean copies {weaker} than points of maximal loss: the "
        f"robust accuracy is {copies.mean:.1f} % and {transferred.mean:.1f} %.",
        f"{norm}: under transferred points {compared_with_static('SODEF', gap)}.",
        f"{norm}: the attack with the exact gradient through the ODE {stronger} than transferred "
        f"points; the robust accuracy is {through.mean:.1f} %. Under all attacks "
        f"{compared_with_static('SODEF', worst_gap)}.",
    ]
