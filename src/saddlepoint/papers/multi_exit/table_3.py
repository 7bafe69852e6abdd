"""Table 3: five training methods, with a single exit and with NEED, under six attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.comparison import base_networks, distant_bases
from saddlepoint.papers.masking import mark_masked, masked_columns, masked_warnings
from saddlepoint.papers.multi_exit import attached, published
from saddlepoint.papers.multi_exit.effects import compare_difference, comparison_findings
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    aimer_attack,
)
from saddlepoint.papers.multi_exit.table_1 import EOT_NOTE
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    experiment = MultiExitExperiment.open(request)
    pairs = {}
    for method in published.TABLE_3:
        # PGD-AT is the training method of the other tables, so its network has no suffix.
        name = "vgg-16" if method == "PGD-AT" else f"vgg-16 {method}"
        pairs[method] = (experiment.subject(f"{name} single"), experiment.subject(name))
    return _assemble(experiment, pairs, ())


def run_real(request: Request) -> Result:
    """Compare the training methods on a third-party network, with attached exits and without."""
    setting = attached.SETTING
    experiment = attached.open_experiment(
        request, replace(setting, test_images=setting.reduced_images)
    )
    pairs = {
        method: (
            attached.attached_subject(experiment, method, single=True),
            attached.attached_subject(experiment, method),
        )
        for method in published.TABLE_3
    }
    return _assemble(experiment, pairs, [attached.training_note()])


def _assemble(
    experiment: MultiExitExperiment,
    pairs: Mapping[str, tuple[MultiExitSubject, MultiExitSubject]],
    notes: Sequence[str],
) -> Result:
    """Evaluate the networks with one exit and with all exits, by training method."""
    rows = list[Row]()
    for method, (single, many) in pairs.items():
        without, with_need = published.TABLE_3[method]
        need = experiment.game(many).equilibrium().defender
        rows.append(_row(experiment, single, method, (1,), without))
        rows.append(_row(experiment, many, f"{method} + NEED", need, with_need))
    table = Table(
        "Accuracy, %",
        ("training", "data"),
        ("clean", *experiment.setting.columns),
        tuple(rows),
        experiment.setting.reduced_images,
    )
    weaker = experiment.setting.weaker
    table = mark_masked(table, weaker)
    bases = distant_bases(base_networks(table, ("clean",)))
    return experiment.result(
        "table-3",
        [table],
        subjects=[subject for pair in pairs.values() for subject in pair],
        notes=[
            *notes,
            experiment.setting.budgets,
            "without NEED: the same backbone with a single exit, as in the comparison of the "
            "paper's abstract; with NEED: under AIMER's best response",
            EOT_NOTE,
        ],
        findings=findings(table),
        symptoms=[*masked_warnings(table, weaker), *bases],
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
    attacks = experiment.setting.attacks
    adversaries = [
        FixedPoints(),
        *(aimer_attack(game, defender.known, attack) for attack in attacks.values()),
    ]
    columns = [0, *(1 + published.ATTACKS.index(name) for name in attacks)]
    papers = [paper[column] for column in columns]
    cells = experiment.accuracies(subject, defender, adversaries, images, papers)
    return Row((label, subject.data), tuple(cells))


def findings(table: Table) -> list[str]:
    """Change in accuracy with NEED per training method, on clean images and under every attack.

    Where the gradients of one of the two networks are masked, differences under single attacks are
    no changes of the robust accuracy. Then only the lowest accuracies over all attacks are given.

    Args:
        table: pairs of rows, without and with NEED; the first column is the clean accuracy.
    """
    sentences = []
    comparisons = []
    for pair in zip(table.rows[::2], table.rows[1::2], strict=True):
        method = pair[0].labels[0]
        if any(masked_columns(table, row) for row in pair):
            sentences.append(_masked_finding(table, pair))
            continue
        changes = []
        for name, a, b in zip(table.columns, pair[0].cells, pair[1].cells, strict=True):
            if a is not None and b is not None:
                changes.append(f"{name} {b.mean - a.mean:+.2f}")
                found = compare_difference(b, a, table.n)
                comparisons += [(f"{method}, {name}", found)] if found else []
        sentences.append(
            f"{method}: change of the accuracy with NEED, in points: {', '.join(changes)}."
        )
    about = "accuracy with NEED minus accuracy without, where no gradients are masked"
    return [*sentences, *comparison_findings(comparisons, about)]


def _masked_finding(table: Table, pair: tuple[Row, Row]) -> str:
    names = [row.labels[0] for row in pair if masked_columns(table, row)]
    lowest = [min(cell.mean for cell in row.cells[1:] if cell) for row in pair]
    return (
        f"{pair[0].labels[0]}: the gradients of {' and of '.join(names)} are masked, so changes "
        f"under single attacks are no changes of the robust accuracy. The lowest accuracy over all "
        f"attacks is {lowest[0]:.2f} % without NEED and {lowest[1]:.2f} % with it."
    )
