"""Beyond the main text: the other architectures and the third dataset of the paper.

The paper reports WRN-34-10, RANet, L2W-DEN and Tiny ImageNet in appendices that were not available,
so there are no published numbers beside ours.
"""

from __future__ import annotations

from saddlepoint.papers.masking import mark_masked, masked_warnings
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    attackers,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

NETWORKS = ("wrn-34-10", "ranet", "l2w-den", "resnet-18-tiny-imagenet")
ATTACKS = ("FGSM", "PGD-20", "PGD-100")


def run(request: Request) -> Result:
    """Evaluate the last exit of each network with the four evaluations of Table 1."""
    experiment = MultiExitExperiment.open(request)
    subjects = [experiment.subject(name) for name in NETWORKS]
    rows = [row for subject in subjects for row in _rows(experiment, subject)]
    setting = experiment.setting
    table = Table(
        "The defender uses the last exit: robust accuracy, %",
        ("network", "data", "evaluation"),
        tuple(map(setting.name, ATTACKS)),
        tuple(rows),
        setting.reduced_images,
    )
    single_step = {setting.name(name): ("FGSM",) for name in ATTACKS[1:]}
    table = mark_masked(table, single_step)
    return experiment.result(
        "architectures",
        [table],
        subjects=subjects,
        notes=[setting.budgets],
        findings=_findings(table),
        symptoms=masked_warnings(table, single_step),
    )


def _rows(experiment: MultiExitExperiment, subject: MultiExitSubject) -> list[Row]:
    game = experiment.game(subject)
    images = experiment.reduced_images(subject)
    defender = experiment.defender(subject, game, (subject.exits,))
    cells: dict[str, list[Cell]] = {name: [] for name in published.EVALUATIONS}
    for attack in ATTACKS:
        adversaries = attackers(subject, game, defender, experiment.setting.attacks[attack])
        found = experiment.accuracies(subject, defender, list(adversaries.values()), images)
        for name, cell in zip(adversaries, found, strict=True):
            cells[name].append(cell)
    return [Row((subject.name, subject.data, name), tuple(row)) for name, row in cells.items()]


def _findings(table: Table) -> list[str]:
    """The max-average attack minus AIMER per network and attack."""
    sentences = []
    for start in range(0, len(table.rows), len(published.EVALUATIONS)):
        network, data, _ = table.rows[start].labels
        gaps = ", ".join(
            f"{column} {_gap(table, network, data, column):+.2f}" for column in table.columns
        )
        sentences.append(
            f"{network}: accuracy under the max-average attack minus accuracy under AIMER, in "
            f"points: {gaps}."
        )
    return sentences


def _gap(table: Table, network: str, data: str, column: str) -> float:
    pair = (table.cell((network, data, name), column) for name in ("Max-average attack", "AIMER"))
    first, second = (cell.mean for cell in pair)
    return first - second
