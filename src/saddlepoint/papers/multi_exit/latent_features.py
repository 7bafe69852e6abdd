"""Beyond the main text: LAFEAT, which uses the gradients of other exits, beside PGD-100.

The paper evaluates LAFIT (Yu, Gao & Xu 2023) in an appendix that was not available. The code of
LAFIT is not public. LAFEAT (Yu, Gao & Xu 2021) is its earlier version with released code.
"""

from __future__ import annotations

from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment, attackers
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

LAFEAT = "LAFEAT"


def run(request: Request) -> Result:
    """Attack the static defender of Table 1 with LAFEAT in all four evaluations."""
    experiment = MultiExitExperiment.open(request)
    subject = experiment.subject("resnet-18")
    game = experiment.game(subject)
    defender = experiment.defender(subject, game, (3,))
    images = experiment.reduced_images(subject)
    exit_attacks = {
        experiment.setting.name("PGD-100"): experiment.setting.attacks["PGD-100"],
        LAFEAT: experiment.setting.lafeat.on(subject.exits),
    }
    cells: dict[str, list[Cell]] = {name: [] for name in published.EVALUATIONS}
    for exit_attack in exit_attacks.values():
        adversaries = attackers(subject, game, defender, exit_attack)
        found = experiment.accuracies(subject, defender, list(adversaries.values()), images)
        for name, cell in zip(adversaries, found, strict=True):
            cells[name].append(cell)
    table = Table(
        f"{subject.name}, the defender uses the third exit: accuracy, %",
        ("evaluation",),
        tuple(exit_attacks),
        tuple(Row((name,), tuple(row)) for name, row in cells.items()),
        len(images.x),
    )
    return experiment.result(
        "latent-features",
        [table],
        subjects=[subject],
        notes=[
            str(experiment.setting.lafeat),
            "the other exits of the network are the latent heads; the released code trains heads",
        ],
        findings=_findings(table),
    )


def _findings(table: Table) -> list[str]:
    """LAFEAT minus PGD-100 per evaluation."""
    pgd = table.columns[0]
    changes = ", ".join(
        f"{row.labels[0].lower() if row.labels[0] != 'AIMER' else 'AIMER'} "
        f"{table.cell(row.labels, LAFEAT).mean - table.cell(row.labels, pgd).mean:+.2f}"
        for row in table.rows
    )
    return [f"Accuracy under LAFEAT minus accuracy under {pgd}, in points: {changes}."]
