"""Table 3: five training methods, with a single exit and with NEED, under six attacks."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import Lab, Subject, aimed
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    lab = Lab.open(request)
    rows = list[Row]()
    subjects = list[Subject]()
    for method, (without, with_need) in published.TABLE_3.items():
        # PGD-AT is the training method of the other tables, so its network has no suffix.
        name = "vgg-16" if method == "PGD-AT" else f"vgg-16 {method}"
        single = lab.subject(f"{name} single")
        many = lab.subject(name)
        subjects += [single, many]
        rows.append(_row(lab, single, method, (1,), without))
        rows.append(
            _row(lab, many, f"{method} + NEED", lab.game(many).equilibrium().defender, with_need)
        )
    table = Table(
        "Accuracy, %",
        ("training", "data"),
        ("clean", *published.ATTACKS),
        tuple(rows),
        lab.setting.swept,
    )
    notes = (
        lab.setting.budgets,
        "without NEED: the same backbone with a single exit, as in the comparison of the paper's "
        "abstract; with NEED: under AIMER's best response",
    )
    return lab.result("table-3", [table], subjects=subjects, notes=notes, findings=_findings(table))


def _row(
    lab: Lab, subject: Subject, label: str, strategy: Tensor | Subset, paper: tuple[float, ...]
) -> Row:
    game = lab.game(subject)
    images = lab.swept(subject)
    defender = lab.defender(subject, game, strategy)
    adversaries = [
        FixedPoints(),
        *(aimed(game, defender.known, lab.setting.attacks[name]) for name in published.ATTACKS),
    ]
    episodes = [lab.play(subject, adversaries, images, seed=seed) for seed in lab.seeds]
    values = [
        tuple(100 * float(defender.right(repeat[k]).mean()) for repeat in episodes)
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
