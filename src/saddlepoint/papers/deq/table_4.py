"""Table 4: equilibrium networks compared with ordinary networks of about the same size."""

from __future__ import annotations

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import Adversary, Direct, FixedPoints
from saddlepoint.papers.cells import accuracy_cell, correct_rate, estimate_cell
from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.grid import Grid, lowest
from saddlepoint.papers.deq.subjects import TrainedNetwork
from saddlepoint.papers.deq.table_3 import AUTO, PGD, attack
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.zoo.deq import MeanState

COLUMNS = ("clean", "PGD-10", "AutoAttack", "weights", "residual")
PAIRS = (("static", "unrolled"), ("static-xl", "unrolled-xl"))
NOTES = (
    "equilibrium networks: the ensemble defense, the minimum over six gradients, under PGD-10 and "
    "under AutoAttack with points of highest loss; the paper's AutoAttack numbers are from clean "
    "copies and overestimate the robustness of its equilibrium networks",
    "ordinary networks: one gradient, the exact one; the paper quotes their numbers",
)
_ENSEMBLE = published.DEFENSES.index("Ensemble")


def run(request: Request) -> Result:
    """Reproduce Table 4."""
    experiment = DEQExperiment.open(request)
    rows = list[Row]()
    findings = list[str]()
    networks = list[TrainedNetwork]()
    grids = list[Grid]()
    for ordinary, name in PAIRS:
        network = experiment.network(ordinary)
        grid = Grid.of(experiment, name)
        networks.append(network)
        grids.append(grid)
        ordinary_row = _ordinary_row(experiment, network)
        equilibrium_row = _equilibrium_row(grid)
        rows += [ordinary_row, equilibrium_row]
        findings += _comparison(ordinary_row, equilibrium_row)
    table = Table(
        "Accuracy, %", ("network",), COLUMNS, tuple(rows), experiment.setting.reduced_images
    )
    states = [grid.states for grid in grids]
    return experiment.result(
        "table-4",
        [table, *(one.table() for one in states)],
        states=states,
        others=networks,
        notes=NOTES,
        findings=findings,
    )


def _ordinary_row(experiment: DEQExperiment, network: TrainedNetwork) -> Row:
    setting = experiment.setting
    attacks: list[Adversary] = [
        FixedPoints(),
        Direct("pgd", setting.pgd, cross_entropy),
        setting.auto.attack(),
    ]
    episodes = experiment.play(network, attacks, experiment.reduced_images(network))
    cells = [
        accuracy_cell(correct_rate(episode), paper)
        for episode, paper in zip(episodes, published.TABLE_4[network.name], strict=True)
    ]
    return Row((network.name,), (*cells, Cell((float(network.weights),)), None))


def _equilibrium_row(grid: Grid) -> Row:
    subject = grid.subject
    papers = published.TABLE_4[subject.name]
    correct = attack(grid)
    images = correct[PGD].shape[-1]
    clean = subject.correct(grid.states.clean, MeanState.name)[:images]
    cells = (
        accuracy_cell(clean, papers[0]),
        estimate_cell(lowest(correct[PGD][:, _ENSEMBLE]), papers[1]),
        estimate_cell(lowest(correct[AUTO][:, _ENSEMBLE]), papers[2]),
        Cell((float(subject.weights),)),
        grid.states.residual_cell(MeanState.name),
    )
    return Row((subject.title,), cells)


def _comparison(ordinary: Row, equilibrium: Row) -> list[str]:
    texts = []
    for k, name in ((1, "PGD-10"), (2, "AutoAttack")):
        ours = equilibrium.cells[k]
        theirs = ordinary.cells[k]
        assert ours is not None
        assert theirs is not None
        reported = ""
        if ours.paper and theirs.paper:
            reported = f"; the paper's numbers give {ours.paper - theirs.paper:+.2f}"
        texts.append(
            f"{name}: the accuracy of {equilibrium.labels[0]} minus that of {ordinary.labels[0]} "
            f"is {ours.mean - theirs.mean:+.2f} points{reported}."
        )
    return texts
