"""Table 2: networks trained with unrolled and with exact gradients under PGD-10."""

from __future__ import annotations

from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.grid import COLUMNS, NOTES, OURS, OURS_NOTE, Grid, with_pgd
from saddlepoint.papers.deq.three_ways import (
    Effect,
    effects_of_ours,
    effects_table,
    grid_effects,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

NETWORKS = ("unrolled", "exact-long")


def run(request: Request) -> Result:
    """Reproduce Table 2."""
    return under_pgd(request, "table-2", NETWORKS)


def under_pgd(request: Request, name: str, networks: tuple[str, ...]) -> Result:
    """Attack three defenses of each network with PGD-10; used for Tables 2 and 6.

    Args:
        request: scale, seed, output folder and progress callback.
        name: name of the experiment, for example "table-2".
        networks: names of the networks.
    """
    experiment = DEQExperiment.open(request)
    rows = list[Row]()
    findings = list[str]()
    effects = list[Effect]()
    grids = [Grid.of(experiment, network) for network in networks]
    for grid in grids:
        correct = grid.correct(with_pgd(experiment))
        ours = grid.correct_ours(with_pgd(experiment))
        rows += grid.rows_with_ours(correct, ours, published.PGD[grid.subject.name])
        findings += grid.findings(correct, "PGD-10")
        findings += grid.stronger_variant(correct, ours)
        effects += [*grid_effects(grid, correct), *effects_of_ours(grid, correct, ours)]
    scored = experiment.setting.test_images
    title = "Accuracy under PGD-10, %"
    table = Table(title, ("network", "defense"), (*COLUMNS, *OURS), tuple(rows), scored)
    states = [grid.states for grid in grids]
    return experiment.result(
        name,
        [table, *(one.table() for one in states), effects_table(effects)],
        states=states,
        notes=(*NOTES, OURS_NOTE),
        findings=findings,
    )
