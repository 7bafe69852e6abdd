"""Table 2: a single-exit network, the last exit, dynamic inference and NEED under AIMER, PGD-20."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from saddlepoint.defenses import Subset
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.comparison import base_networks, distant_bases
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.effects import (
    compare_difference,
    comparison_findings,
    difference,
)
from saddlepoint.papers.multi_exit.experiment import (
    MultiExitExperiment,
    MultiExitSubject,
    aimer_attack,
)
from saddlepoint.papers.multi_exit.third_party import triple_wins
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table

NETWORKS = ("resnet-18", "vgg-16")
COLUMNS = ("R_mis", "clean, %", "robust, %")
NEED = "Multi-exit (NEED)"


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    experiment = MultiExitExperiment.open(request)
    rows = list[Row]()
    subjects = list[MultiExitSubject]()
    for network in NETWORKS:
        single = experiment.subject(f"{network} single")
        many = experiment.subject(network)
        subjects += [single, many]
        rows.append(_row(experiment, single, "Single-exit", (1,), network))
        rows.append(_row(experiment, many, "Multi-exit (static)", (many.exits,), network))
        rows.append(_row(experiment, many, "Multi-exit (dynamic)", "entropy", network))
        rows.append(
            _row(experiment, many, NEED, experiment.game(many).equilibrium().defender, network)
        )
    return _assemble(experiment, rows, subjects)


def run_real(request: Request) -> Result:
    """Evaluate the multi-exit rows of Table 2 on the third-party network.

    It has no twin with a single exit.
    """
    experiment = MultiExitExperiment.open(request)
    whole = triple_wins(experiment)
    game = experiment.game(whole)
    subject = replace(whole, test=experiment.reduced_images(whole))
    strategies: dict[str, Tensor | Subset | str] = {
        "Multi-exit (static)": (subject.exits,),
        "Multi-exit (dynamic)": "entropy",
        NEED: game.equilibrium().defender,
    }
    rows = [
        _row(experiment, subject, method, strategy, "resnet-18")
        for method, strategy in strategies.items()
    ]
    return _assemble(experiment, rows, [subject])


def _assemble(
    experiment: MultiExitExperiment, rows: Sequence[Row], subjects: Sequence[MultiExitSubject]
) -> Result:
    table = Table(
        "Accuracy under AIMER with PGD-20",
        ("network", "data", "defense"),
        COLUMNS,
        tuple(rows),
        len(subjects[0].test.x),
    )
    notes = (
        "static: the last exit; dynamic: the first exit with low entropy (the paper does not say "
        "which rule this row uses)",
        "the accuracy of NEED is its exact expectation over the drawn exits, not a simulation",
    )
    return experiment.result(
        "table-2",
        [table],
        subjects=subjects,
        notes=notes,
        findings=_findings(table),
        symptoms=distant_bases(base_networks(table, ("clean, %",))),
    )


def _row(
    experiment: MultiExitExperiment,
    subject: MultiExitSubject,
    method: str,
    strategy: Tensor | Subset | str,
    network: str,
) -> Row:
    game = experiment.game(subject)
    defender = experiment.defender(subject, game, strategy)
    adversaries = [
        FixedPoints(),
        aimer_attack(game, defender.known, experiment.setting.attacks["PGD-20"]),
    ]
    paper = published.TABLE_2[network][method]
    clean, robust = experiment.accuracies(subject, defender, adversaries, subject.test, paper[1:])
    rate = game.mismatch(game.best_response(defender.known), defender.known)
    mismatch = None if paper[0] is None else Cell((rate,), paper[0])
    label = subject.name if experiment.request.scale == "real" else network
    return Row((label, subject.data, method), (mismatch, clean, robust))


def _findings(table: Table) -> list[str]:
    """Robust accuracy of NEED compared with every other defense of the same network."""
    sentences = []
    comparisons = []
    for row in table.rows:
        if row.labels[2] != NEED:
            network, data, method = row.labels
            need = table.cell((network, data, NEED), "robust, %")
            other = table.cell(row.labels, "robust, %")
            found = difference(need, other, table.n)
            sentences.append(
                f"{network}: the robust accuracy of NEED minus that of {method.lower()} is "
                f"{found.value:+.2f} points ({found.low:+.1f} to {found.high:+.1f})."
            )
            compared = compare_difference(need, other, table.n)
            comparisons += [(f"{network}, {method.lower()}", compared)] if compared else []
    return [
        *sentences,
        *comparison_findings(comparisons, "robust accuracy of NEED minus that of another defense"),
    ]
