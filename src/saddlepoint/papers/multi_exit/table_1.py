"""Table 1: five defenders, four ways to evaluate them, six attacks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.games.exit_game import ExitGame
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import Lab, Subject, attackers
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

Strategy = Tensor | Subset | str


@dataclass(frozen=True)
class Case:
    """A defender of the table."""

    method: str
    network: str  # of the lab
    paper: str  # of `published.TABLE_1`
    strategy: (
        Subset | str
    )  # exits, of which one is drawn at even chances if there are several; or a gate


CASES = (
    Case("Static (3rd exit)", "resnet-18", "static", (3,)),
    Case("Random (3rd or 5th)", "vgg-16", "random", (3, 5)),
    Case("Dynamic, entropy", "vgg-16", "entropy", "entropy"),
    Case("Dynamic, confidence", "msdnet", "confidence-msdnet", "confidence"),
    Case("Dynamic, confidence", "vit", "confidence-vit", "confidence"),
)
LABELS = ("defense", "network", "data", "evaluation")


def run(request: Request) -> Result:
    lab = Lab.open(request)
    rows = list[Row]()
    subjects = dict[str, Subject]()
    for case in CASES:
        subject = subjects.setdefault(case.network, lab.subject(case.network))
        rows += evaluated(lab, subject, case)
    table = Table("Robust accuracy, %", LABELS, published.ATTACKS, tuple(rows), lab.setting.swept)
    return lab.result(
        "table-1",
        [table],
        subjects=list(subjects.values()),
        notes=[
            lab.setting.budgets,
            "a draw of the defender is not simulated: its expectation is exact; a draw of AIMER among equals is made per image",
            "thresholds of dynamic inference come from the held-out training images, without shifts by hand",
        ],
        findings=findings(table),
    )


def evaluated(lab: Lab, subject: Subject, case: Case) -> list[Row]:
    """The rows of one defender, a cell per attack with a value per repeat."""
    game = lab.game(subject)
    images = lab.swept(subject)
    defender = lab.defender(subject, game, _strategy(case, game))
    found: dict[str, list[Cell]] = {name: [] for name in published.EVALUATIONS}
    for column, attack in enumerate(published.ATTACKS):
        sent = attackers(subject, game, defender, lab.setting.attacks[attack])
        episodes = [lab.play(subject, list(sent.values()), images, seed=seed) for seed in lab.seeds]
        for k, name in enumerate(sent):
            values = tuple(100 * float(defender.right(repeat[k]).mean()) for repeat in episodes)
            found[name].append(Cell(values, published.TABLE_1[case.paper][k][column]))
    return [
        Row((case.method, subject.name, subject.data, name), tuple(cells))
        for name, cells in found.items()
    ]


def _strategy(case: Case, game: ExitGame) -> Strategy:
    if isinstance(case.strategy, str):
        return case.strategy
    return torch.stack([game.one_hot((number,)) for number in case.strategy]).mean(0)


def findings(table: Table) -> list[str]:
    """Where AIMER is not the lowest, and where AutoAttack is not."""
    count = len(published.EVALUATIONS)
    above = []
    cells = 0
    for start in range(0, len(table.rows), count):
        group = table.rows[start : start + count]
        for column, attack in enumerate(table.columns):
            means = {row.labels[-1]: cell.mean for row in group if (cell := row.cells[column])}
            lowest = min(means, key=lambda name: means[name])
            cells += 1
            if means["AIMER"] > means[lowest]:
                gap = means["AIMER"] - means[lowest]
                above.append(
                    f"{group[0].labels[0]} on {group[0].labels[1]}, {attack}: {gap:.2f} points above the {lowest.lower()}"
                )
    told = [
        f"AIMER finds the lowest accuracy, alone or with others, in {cells - len(above)} of {cells} columns."
    ]
    return [*told, *(f"Against the paper, AIMER is not the lowest: {one}." for one in above)]
