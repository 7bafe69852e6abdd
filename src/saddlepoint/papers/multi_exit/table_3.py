"""Table 3: five training methods, with a single exit and with NEED, under six attacks."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    aimer_attack,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    experiment = MultiExitExperiment.open(request)
    rows = list[Row]()
    subjects = list[MultiExitSubject]()
    for method, (without, with_need) in published.TABLE_3.items():
        # PGD-AT is the training method of the other tables, so its network has no suffix.
        name = "vgg-16" if method == "PGD-AT" else f"vgg-16 {method}"
        single = experiment.subject(f"{name} single")
        many = experiment.subject(name)
        subjects += [single, many]
        rows.append(_row(experiment, single, method, (1,), without))
        rows.append(
            _row(
                experiment,
                many,
                f"{method} + NEED",
                experiment.game(many).equilibrium().defender,
                with_need,
            )
        )
    table = Table(
        "Accuracy, %",
        ("training", "data"),
        ("clean", *published.ATTACKS),
        tuple(rows),
        experiment.setting.reduced_images,
    )
    notes = (
        experiment.setting.budgets,
        "without NEED: the same backbone with a single exit, as in the comparison of the paper's "
        "abstract; with NEED: under AIMER's best response",
    )
    return experiment.result(
        "table-3", [table], subjects=subjects, notes=notes, findings=_findings(table)
    )


def _row(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    label: str,
    strategy: Tensor | Subset,
    paper: tuple[float, ...],
) -> Row:
    game = experiment.game(subject)
    images = experiment.reduced_images(subject)
    defender = experiment.defender(subject, game, strategy)
    adversaries = [
        FixedPoints(),
        *(
            aimer_attack(game, defender.known, experiment.setting.attacks[name])
            for name in published.ATTACKS
        ),
    ]
    episodes = [
        experiment.play(subject, adversaries, images, seed=seed) for seed in experiment.seeds
    ]
    values = [
        tuple(100 * float(defender.correct(repeat[k]).mean()) for repeat in episodes)
        for k in range(len(adversaries))
    ]
    return Row((label, subject.data), tuple(Cell(v, p) for v, p in zip(values, paper, strict=True)))


def _findings(table: Table) -> list[str]:
    """Change in accuracy with NEED per training method, on clean images and under every attack."""
    sentences = []
    for without, with_need in zip(table.rows[::2], table.rows[1::2], strict=True):
        gains = {
            name: b.mean - a.mean
            for name, a, b in zip(table.columns, without.cells, with_need.cells, strict=True)
            if a and b
        }
        changes = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
        sentences.append(
            f"{without.labels[0]}: change of the accuracy with NEED, in points: {changes}."
        )
    return sentences
