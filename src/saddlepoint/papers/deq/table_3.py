"""Table 3: networks of two sizes trained with unrolled gradients, under PGD-10 and AutoAttack."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.papers.deq import EXPERIMENTS, published
from saddlepoint.papers.deq.experiment import Lab
from saddlepoint.papers.deq.grid import COLUMNS, NOTES, Grid, joined, with_pgd
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

NETWORKS = ("unrolled", "unrolled-xl")
PGD = "PGD-10"
AUTO = "AutoAttack"
STOCK = "AutoAttack, stock"


def run(request: Request) -> Result:
    lab = Lab.open(request)
    rows = list[Row]()
    told = list[str]()
    grids = [Grid.of(lab, name) for name in NETWORKS]
    for grid in grids:
        name = grid.subject.name
        found = attacked(grid)
        rows += grid.rows(found[PGD], published.PGD[name], (PGD,))
        rows += grid.rows(found[AUTO], {}, (AUTO,))
        rows += grid.rows(found[STOCK], published.STOCK[name], (STOCK,))
        told += [
            *grid.findings(joined([found[PGD], found[AUTO]]), "PGD-10 and AutoAttack")[:1],
            *grid.findings(found[PGD], PGD),
        ]
        told.append(_weaker(grid, found))
    table = Table(
        "Accuracy, %", ("network", "defense", "attack"), COLUMNS, tuple(rows), lab.setting.swept
    )
    states = [grid.states for grid in grids]
    notes = (
        "AutoAttack sends max-value points. Stock: as its own code returns them, the clean image where the attacked state was "
        "wrong before or did not fall; so were the paper's figures found, which stand beside these rows",
        "AutoAttack counts a success on the attacked state; on the ensemble gradient, that of the ensemble's state",
    )
    return lab.result(
        EXPERIMENTS[2],
        [table, *(one.table() for one in states)],
        states=states,
        notes=(*notes, *NOTES),
        findings=told,
    )


def attacked(grid: Grid) -> dict[str, Tensor]:
    """[A, D, N] by kind of attack, on the images that all of them are sent to."""
    budget = grid.lab.setting.auto
    images = grid.lab.swept(grid.subject)
    return {
        PGD: grid.correct(with_pgd(grid.lab))[..., : len(images.x)],
        AUTO: grid.correct(lambda one: one.auto(budget), images),
        STOCK: grid.correct(lambda one: one.auto(budget, copies=True), images),
    }


def _weaker(grid: Grid, found: dict[str, Tensor]) -> str:
    """How often AutoAttack leaves more than PGD-10, which the paper sees in many cells."""
    left = {name: correct.mean(-1) for name, correct in found.items()}
    above = {name: int((left[name] > left[PGD]).sum()) for name in (AUTO, STOCK)}
    paper = sum(
        stock > pgd
        for defense, figures in published.STOCK[grid.subject.name].items()
        for stock, pgd in zip(figures, published.PGD[grid.subject.name][defense], strict=True)
    )
    return (
        f"{grid.subject.title}: AutoAttack leaves more than PGD-10 in {above[STOCK]} of {left[PGD].numel()} cells with the clean "
        f"copies of its stock code, in {above[AUTO]} with max-value points; in the paper in {paper}."
    )
