"""Table 3: five training methods, with a single exit and with NEED, under six attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.cells import by_interval, difference_cell, repeated_accuracy_cell
from saddlepoint.papers.comparison import base_networks, distant_bases
from saddlepoint.papers.masking import mark_masked, masked_columns, masked_warnings
from saddlepoint.papers.multi_exit import attached, published
from saddlepoint.papers.multi_exit.effects import compare_difference, comparison_findings
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    aimer_attack,
)
from saddlepoint.papers.multi_exit.scales import SETTINGS, MultiExitSetting
from saddlepoint.papers.multi_exit.table_1 import EOT_NOTE
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.phrases import count, names

STRONGEST = "strongest attack per image"
IMAGES = 200  # scored at scale real
ATTACKS = ("FGSM", "PGD-20", "EoT-PGD-20", "VMI-FGSM")  # at scale real
_LEAST = 0.005  # probability of a set of exits that the notes name


@dataclass(frozen=True)
class _ScoredRow:
    """A row of the table with its results per image."""

    row: Row
    correct: Tensor  # [1 + attacks, N] mean over repeats of a correct answer; clean images first


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    experiment = MultiExitExperiment.open(request)
    pairs = {}
    for method in published.TABLE_3:
        # PGD-AT is the training method of the other tables, so its network has no suffix.
        name = "vgg-16" if method == "PGD-AT" else f"vgg-16 {method}"
        pairs[method] = (experiment.subject(f"{name} single"), experiment.subject(name))
    return _assemble(experiment, pairs)


def run_real(request: Request) -> Result:
    """Compare the training methods on a third-party network, with attached exits and without."""
    experiment = attached.open_experiment(request, _real_setting())
    pairs = {
        method: (
            attached.attached_subject(experiment, method, single=True),
            attached.attached_subject(experiment, method),
        )
        for method in published.TABLE_3
    }
    notes = [
        attached.training_note(),
        f"Standard: {attached.EPOCHS} epochs without attacks keep most of the robustness of the "
        "weights that others trained, so these rows are not the paper's standard training",
    ]
    warning = (
        "The paper's numbers are of VGG-16 at 8/255, another network and a larger radius than here "
        f"({attached.SPACE}). Compare the signs of changes, not accuracies."
    )
    return _assemble(experiment, pairs, notes, warning)


def _real_setting() -> MultiExitSetting:
    """Return the setting of attached exits with the attacks and images of this table."""
    full = SETTINGS["paper"].attacks
    left_out = names([name for name in full if name not in ATTACKS])
    return replace(
        attached.SETTING,
        test_images=IMAGES,
        reduced_images=IMAGES,
        attacks={name: full[name] for name in ATTACKS},
        budgets=f"{names(ATTACKS)} with the paper's budgets; {left_out} were not run",
    )


def _assemble(
    experiment: MultiExitExperiment,
    pairs: Mapping[str, tuple[MultiExitSubject, MultiExitSubject]],
    notes: Sequence[str] = (),
    other_networks: str = "",
) -> Result:
    """Evaluate the networks with one exit and with all exits, by training method.

    Args:
        experiment: the experiment.
        pairs: the network with one exit and that with several, by training method.
        notes: how the networks were made.
        other_networks: warning that accuracies are not comparable with the paper's; empty if the
            networks are meant to be the paper's.
    """
    scored = dict[str, tuple[_ScoredRow, _ScoredRow]]()
    strategies = list[str]()
    for method, (single, many) in pairs.items():
        without, with_need = published.TABLE_3[method]
        game = experiment.game(many)
        need = game.equilibrium().defender
        strategies.append(f"NEED of {method}: {_sets(game.subsets, need)}")
        scored[method] = (
            _row(experiment, single, method, (1,), without),
            _row(experiment, many, f"{method} + NEED", need, with_need),
        )
    table = Table(
        "Accuracy, %",
        ("training", "data"),
        ("clean", *experiment.setting.columns),
        tuple(one.row for pair in scored.values() for one in pair),
        experiment.setting.reduced_images,
    )
    weaker = experiment.setting.weaker
    table = mark_masked(table, weaker)
    changes = _changes(table, list(scored.values()))
    if other_networks:
        warnings = [other_networks]
        conclusions = [_count_signs(changes)]
    else:
        warnings = distant_bases(base_networks(table, ("clean",)))
        conclusions = findings(table)
    return experiment.result(
        "table-3",
        [table, changes],
        subjects=[subject for pair in pairs.values() for subject in pair],
        notes=[
            *notes,
            experiment.setting.budgets,
            "without NEED: the same backbone with a single exit, as in the comparison of the "
            "paper's abstract; with NEED: under AIMER's best response",
            f"{STRONGEST}: an image counts as correct if it is under every attack of this table "
            "and without one; with NEED, its lowest probability of a correct answer",
            *strategies,
            EOT_NOTE,
        ],
        findings=[*conclusions, *map(_strongest_finding, changes.rows)],
        symptoms=[*masked_warnings(table, weaker), *warnings],
    )


def _sets(subsets: Sequence[Subset], probabilities: Tensor) -> str:
    """Name the sets of exits of a strategy with their probabilities."""
    likely = [
        (probability, subset)
        for subset, probability in zip(subsets, probabilities.tolist(), strict=True)
        if probability >= _LEAST
    ]
    return ", ".join(
        f"exits {'+'.join(map(str, subset))} with probability {probability:.2f}"
        for probability, subset in sorted(likely, reverse=True)
    )


def _changes(table: Table, pairs: Sequence[tuple[_ScoredRow, _ScoredRow]]) -> Table:
    """Make the table of accuracies with NEED minus those without, on the same images."""
    rows = []
    for k, (single, need) in enumerate(pairs):
        marked = zip(table.rows[2 * k].cells, table.rows[2 * k + 1].cells, strict=True)
        cells = [
            _change(after, before, cell)
            for after, before, cell in zip(need.correct, single.correct, marked, strict=True)
        ]
        strongest = difference_cell(need.correct.amin(0), single.correct.amin(0))
        rows.append(Row(single.row.labels, (*cells, strongest)))
    return Table(
        "Accuracy with NEED minus accuracy without, points, paired by image",
        table.labels,
        ("clean images", *table.columns[1:], STRONGEST),
        tuple(rows),
        table.n,
    )


def _change(after: Tensor, before: Tensor, cells: tuple[Cell | None, Cell | None]) -> Cell:
    """Make a cell of the change; it is masked if one of the two accuracies is."""
    first, second = cells
    assert first is not None
    assert second is not None
    paper = None
    if first.paper is not None and second.paper is not None:
        paper = second.paper - first.paper
    return replace(difference_cell(after, before, paper), masked=first.masked or second.masked)


def _count_signs(changes: Table) -> str:
    """Count the changes under single attacks by sign; masked ones are left out."""
    cells = [cell for row in changes.rows for cell in row.cells[1:-1] if cell and not cell.masked]
    intervals = [cell.interval for cell in cells if cell.interval]
    above = sum(low > 0 for low, _ in intervals)
    below = sum(high < 0 for _, high in intervals)
    return (
        f"Of {count(len(intervals), 'change')} of the accuracy under single attacks that are not "
        f"masked, {above} are significantly positive and {below} significantly negative."
    )


def _strongest_finding(row: Row) -> str:
    cell = row.cells[-1]
    assert cell is not None
    assert cell.interval is not None
    low, high = cell.interval
    effect = by_interval(
        low,
        high,
        above="NEED is more robust than the single exit",
        below="NEED is less robust than the single exit",
        inconclusive="NEED and the single exit do not differ significantly",
    )
    return (
        f"{row.labels[0]}: under the {STRONGEST} {effect}: {cell.mean:+.2f} points "
        f"({low:+.2f} to {high:+.2f})."
    )


def _row(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    label: str,
    strategy: Tensor | Subset,
    paper: tuple[float, ...],
) -> _ScoredRow:
    game = experiment.game(subject)
    images = experiment.reduced_images(subject)
    defender = experiment.defender(subject, game, strategy)
    attacks = experiment.setting.attacks
    adversaries = [
        FixedPoints(),
        *(aimer_attack(game, defender.known, attack) for attack in attacks.values()),
    ]
    columns = [0, *(1 + published.ATTACKS.index(name) for name in attacks)]
    repeats = torch.stack(
        [
            torch.stack([defender.correct(episode).cpu() for episode in episodes])
            for episodes in (
                experiment.play(subject, adversaries, images, seed=seed)
                for seed in experiment.seeds
            )
        ]
    )  # [repeats, 1 + attacks, N]
    cells = [
        repeated_accuracy_cell(list(repeats[:, k]), paper[column])
        for k, column in enumerate(columns)
    ]
    return _ScoredRow(Row((label, subject.data), tuple(cells)), repeats.mean(0))


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
