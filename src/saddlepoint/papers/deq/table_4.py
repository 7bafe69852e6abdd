"""Table 4: equilibrium networks beside ordinary ones of about the same size."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import Adversary, Cascade, Direct, Episode, FixedPoints, autoattack
from saddlepoint.papers.deq import EXPERIMENTS, published
from saddlepoint.papers.deq.experiment import Lab, Trained, accuracy, percent
from saddlepoint.papers.deq.grid import Grid, lowest
from saddlepoint.papers.deq.table_3 import AUTO, PGD, attacked
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.zoo.deq import MeanState

COLUMNS = ("clean", "PGD-10", "AutoAttack", "weights", "residual")
PAIRS = (("static", "unrolled"), ("static-xl", "unrolled-xl"))
_ENSEMBLE = published.DEFENSES.index("Ensemble")


def run(request: Request) -> Result:
    lab = Lab.open(request)
    rows = list[Row]()
    told = list[str]()
    nets = list[Trained]()
    grids = list[Grid]()
    for ordinary, name in PAIRS:
        net = lab.trained(ordinary)
        grid = Grid.of(lab, name)
        nets.append(net)
        grids.append(grid)
        plain = _plain(lab, net)
        solved = _solved(grid)
        rows += [plain, solved]
        told += _compared(plain, solved)
    table = Table("Accuracy, %", ("network",), COLUMNS, tuple(rows), lab.setting.swept)
    notes = (
        "equilibrium networks: the ensemble defense, its lowest column over six gradients, by PGD-10 and by AutoAttack with "
        "max-value points; the paper's AutoAttack figures are from clean copies, too kind to its equilibrium networks",
        "ordinary networks: one gradient, the exact one; the paper quotes theirs",
    )
    states = [grid.states for grid in grids]
    return lab.result(
        EXPERIMENTS[3],
        [table, *(one.table() for one in states)],
        states=states,
        others=nets,
        notes=notes,
        findings=told,
    )


def _plain(lab: Lab, net: Trained) -> Row:
    budget = lab.setting.auto
    parts = autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries)
    sent: list[Adversary] = [
        FixedPoints(),
        Direct("pgd", lab.setting.pgd, cross_entropy),
        Cascade("autoattack", parts),
    ]
    right = [_right(episode) for episode in lab.play(net, sent, lab.swept(net))]
    cells = [
        accuracy(found, paper)
        for found, paper in zip(right, published.TABLE_4[net.name], strict=True)
    ]
    return Row((net.name,), (*cells, Cell((float(net.weights),)), None))


def _right(episode: Episode) -> Tensor:
    return episode.correct[0].double().cpu()


def _solved(grid: Grid) -> Row:
    subject = grid.subject
    papers = published.TABLE_4[grid.subject.name]
    found = attacked(grid)
    clean = accuracy(
        subject.right(grid.states.clean, MeanState.name)[: found[PGD].shape[-1]], papers[0]
    )
    robust = [
        percent(lowest(found[kind][:, _ENSEMBLE]), paper)
        for kind, paper in zip((PGD, AUTO), papers[1:], strict=True)
    ]
    return Row(
        (subject.title,),
        (clean, *robust, Cell((float(subject.weights),)), grid.states.far(MeanState.name)),
    )


def _compared(plain: Row, solved: Row) -> list[str]:
    told = []
    for k, attack in ((1, "PGD-10"), (2, "AutoAttack")):
        ours = solved.cells[k]
        theirs = plain.cells[k]
        assert ours is not None
        assert theirs is not None
        reported = (
            f"; the paper's figures give {ours.paper - theirs.paper:+.2f}"
            if ours.paper and theirs.paper
            else ""
        )
        told.append(
            f"{attack}: {solved.labels[0]} is {ours.mean - theirs.mean:+.2f} points from {plain.labels[0]}{reported}."
        )
    return told
