"""Table 3: networks of two sizes trained with unrolled gradients under PGD-10 and AutoAttack."""

from __future__ import annotations

from torch import Tensor

from saddlepoint.papers.deq import published
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.grid import COLUMNS, NOTES, Grid, join_attacks, with_pgd
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table

NETWORKS = ("unrolled", "unrolled-xl")
PGD = "PGD-10"
AUTO = "AutoAttack"
CLEAN_COPIES = "AutoAttack, clean copies"
AUTO_NOTES = (
    "AutoAttack returns points of highest loss. With clean copies it returns what its published "
    "code does: the clean image where the attacked state was misclassified before or the attack "
    "failed. The paper's numbers next to these rows were measured so",
    "AutoAttack measures success on the attacked state; with the ensemble gradient, on the mean "
    "state",
)


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    experiment = DEQExperiment.open(request)
    rows = list[Row]()
    findings = list[str]()
    grids = [Grid.of(experiment, name) for name in NETWORKS]
    for grid in grids:
        name = grid.subject.name
        correct = attack(grid)
        rows += grid.rows(correct[PGD], published.PGD[name], (PGD,))
        rows += grid.rows(correct[AUTO], {}, (AUTO,))
        rows += grid.rows(correct[CLEAN_COPIES], published.CLEAN_COPIES[name], (CLEAN_COPIES,))
        both = join_attacks([correct[PGD], correct[AUTO]])
        findings.append(grid.findings(both, "PGD-10 and AutoAttack")[0])
        findings += grid.findings(correct[PGD], PGD)
        findings.append(_weaker_than_pgd(grid, correct))
    labels = ("network", "defense", "attack")
    table = Table("Accuracy, %", labels, COLUMNS, tuple(rows), experiment.setting.reduced_images)
    states = [grid.states for grid in grids]
    return experiment.result(
        "table-3",
        [table, *(one.table() for one in states)],
        states=states,
        notes=(*AUTO_NOTES, *NOTES),
        findings=findings,
    )


def attack(grid: Grid) -> dict[str, Tensor]:
    """Return the correct predictions [A, D, N] by kind of attack, all on the same images."""
    budget = grid.experiment.setting.auto
    images = grid.experiment.reduced_images(grid.subject)
    return {
        PGD: grid.correct(with_pgd(grid.experiment))[..., : len(images.x)],
        AUTO: grid.correct(lambda gradient: gradient.auto(budget), images),
        CLEAN_COPIES: grid.correct(lambda gradient: gradient.auto(budget, copies=True), images),
    }


def _weaker_than_pgd(grid: Grid, correct: dict[str, Tensor]) -> str:
    """Count the cells in which AutoAttack is weaker than PGD-10, as in many cells of the paper."""
    subject = grid.subject
    accuracy = {name: values.mean(-1) for name, values in correct.items()}
    weaker = {name: int((accuracy[name] > accuracy[PGD]).sum()) for name in (AUTO, CLEAN_COPIES)}
    paper = sum(
        auto > pgd
        for defense, numbers in published.CLEAN_COPIES[subject.name].items()
        for auto, pgd in zip(numbers, published.PGD[subject.name][defense], strict=True)
    )
    return (
        f"{subject.title}: AutoAttack is weaker than PGD-10 in {weaker[CLEAN_COPIES]} of "
        f"{accuracy[PGD].numel()} cells with the clean copies of its published code, in "
        f"{weaker[AUTO]} with points of highest loss, and in {paper} in the paper."
    )
