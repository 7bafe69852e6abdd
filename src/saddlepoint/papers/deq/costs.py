"""Appendix F: memory of the defenses; passes, evaluations of f and time of the attacks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Episode
from saddlepoint.gradients import Backprop
from saddlepoint.papers.cells import accuracy_cell
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.gradients import Gradient, ready_made
from saddlepoint.papers.deq.grid import Grid, with_pgd
from saddlepoint.papers.deq.memory import peak_bytes
from saddlepoint.papers.deq.subjects import DEQSubject
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.rng import Keys
from saddlepoint.solvers import SolverStats
from saddlepoint.zoo.deq import DEQ, FinalState, MeanState, State
from saddlepoint.zoo.deq.model import SITE

EVALUATIONS = "f per gradient"
PRODUCTS = "products with df/dz per gradient"
ATTACK_COLUMNS = (
    "forward passes",
    "backward passes",
    EVALUATIONS,
    PRODUCTS,
    "ms",
    "kB per gradient",
    "final, %",
    "residual",
)
DEFENSE_COLUMNS = ("f", "kB", "clean, %", "residual")
NOTES = (
    "forward and backward passes and milliseconds: of PGD-10 on one image, the mean over the test "
    "images, on this machine",
    "f per gradient: evaluations of f for one gradient of one image, including the forward solve; "
    "kB: peak memory of the tensors created by the computation, without weights",
    "here the solver continues to its last step after the early state; a deployed solver would "
    "stop there",
)


def run(request: Request) -> Result:
    """Measure the costs of Appendix F."""
    experiment = DEQExperiment.open(request)
    grid = Grid.of(experiment, "unrolled")
    attacks = _attack_table(experiment, grid)
    defenses = _defense_table(grid)
    return experiment.result(
        "appendix-f",
        [attacks, defenses, grid.states.table()],
        states=[grid.states],
        notes=NOTES,
        findings=_findings(attacks, defenses),
    )


class SolverCost(NamedTuple):
    """The cost of a computation on one image."""

    evaluations: float  # of f
    products: float  # with (df/dz)^T
    kilobytes: float  # peak memory


def gradient_cost(subject: DEQSubject, gradient: Gradient) -> SolverCost:
    """Measure the cost of one gradient of the first test image."""
    x, y = subject.test.first(1)
    keys = Keys.of(0, torch.arange(1, device=x.device))
    stats = SolverStats.of(1, x.device)
    objective = AttackObjective(
        [subject.defense],
        y,
        cross_entropy,
        gradient.aim,
        {SITE: gradient.rule},
        gradient.keep,
        stats=stats,
    )
    peak = peak_bytes(lambda: Backprop().value_and_grad(objective, x, keys))
    return SolverCost(float(stats.evaluations), float(stats.products), peak / 1e3)


def answer_cost(subject: DEQSubject, state: State) -> SolverCost:
    """Measure the cost of one inference with this state on the first test image, without grad."""
    base = subject.defense
    defense = DEQ(base.net, method=base.method, after=base.after, state=state)
    ctx = Context(Keys.of(0, torch.arange(1, device=subject.test.x.device)), keep=defense.reads)

    def answer() -> Tensor:
        with torch.no_grad():
            return defense.respond(subject.test.x[:1], ctx)

    peak = peak_bytes(answer)
    return SolverCost(float(ctx.stats.evaluations), float(ctx.stats.products), peak / 1e3)


def _defense_table(grid: Grid) -> Table:
    subject = grid.subject
    states = grid.states
    defenses: dict[str, State] = {
        "Final": FinalState(),
        "Early": grid.early,
        "Ensemble": MeanState(),
    }
    rows = []
    for name, state in defenses.items():
        cost = answer_cost(subject, state)
        cells = (
            Cell((cost.evaluations,)),
            Cell((cost.kilobytes,)),
            accuracy_cell(subject.correct(states.clean, state.name)),
            states.residual_cell(state.name),
        )
        rows.append(Row((name,), cells))
    title = f"{subject.title}: one inference, for one image"
    return Table(title, ("defense",), DEFENSE_COLUMNS, tuple(rows), len(subject.test.x))


def _attack_table(experiment: DEQExperiment, grid: Grid) -> Table:
    gradients = {"ready-made": ready_made(grid.subject.net), **grid.gradients}
    episodes = [grid.states.attacked, *grid.episodes(with_pgd(experiment))]
    rows = [
        _attack_row(grid, name, gradient, episode)
        for (name, gradient), episode in zip(gradients.items(), episodes, strict=True)
    ]
    title = f"{grid.subject.title}: PGD-10, for one image"
    return Table(title, ("gradient",), ATTACK_COLUMNS, tuple(rows), experiment.setting.test_images)


def _attack_row(grid: Grid, name: str, gradient: Gradient, episode: Episode) -> Row:
    cost = gradient_cost(grid.subject, gradient)
    numbers = (
        float(episode.forward.double().mean()),
        float(episode.backward.double().mean()),
        cost.evaluations,
        cost.products,
        1000 * episode.seconds / len(episode.forward),
        cost.kilobytes,
    )
    cells = (
        *(Cell((number,)) for number in numbers),
        accuracy_cell(grid.subject.correct(episode, FinalState.name)),
        grid.states.residual_cell(gradient.state.name),
    )
    return Row((name,), cells)


def _findings(attacks: Table, defenses: Table) -> list[str]:
    def total(labels: tuple[str, ...]) -> float:
        return attacks.cell(labels, EVALUATIONS).mean + attacks.cell(labels, PRODUCTS).mean

    texts = [
        f"The gradient {row.labels[0]} takes {total(row.labels) / total(('ready-made',)):.2f} "
        "times the evaluations and products of the ready-made gradient."
        for row in attacks.rows[1:]
    ]
    final, ensemble = (defenses.cell((name,), "kB").mean for name in ("Final", "Ensemble"))
    texts.append(
        f"The ensemble defense needs {ensemble / final:.2f} times the memory of the final state; "
        "it stores a running sum of the states, not the states."
    )
    return texts
