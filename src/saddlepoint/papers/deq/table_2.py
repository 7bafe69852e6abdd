"""Table 2: the network trained with unrolled gradients and the one with exact gradients and many steps, under PGD-10."""

from __future__ import annotations

from saddlepoint.papers.deq import EXPERIMENTS, published
from saddlepoint.papers.deq.experiment import Lab
from saddlepoint.papers.deq.grid import COLUMNS, NOTES, Grid, with_pgd
from saddlepoint.papers.registry import Experiment, Request
from saddlepoint.papers.result import Result, Row, Table

NETWORKS = ("unrolled", "exact-long")


def run(request: Request) -> Result:
    return under_pgd(Lab.open(request), EXPERIMENTS[1], NETWORKS)


def under_pgd(lab: Lab, experiment: Experiment, networks: tuple[str, ...]) -> Result:
    """Tables 2 and 6 differ in their networks alone."""
    rows = list[Row]()
    told = list[str]()
    grids = [Grid.of(lab, name) for name in networks]
    for grid in grids:
        correct = grid.correct(with_pgd(lab))
        rows += grid.rows(correct, published.PGD[grid.subject.name])
        told += grid.findings(correct, "PGD-10")
    table = Table(
        "Accuracy under PGD-10, %", ("network", "defense"), COLUMNS, tuple(rows), lab.setting.scored
    )
    states = [grid.states for grid in grids]
    return lab.result(
        experiment,
        [table, *(one.table() for one in states)],
        states=states,
        notes=NOTES,
        findings=told,
    )
