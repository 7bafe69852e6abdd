"""Appendix F: what the defenses hold in memory, and what the attacks cost in passes, in evaluations of f and in time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Episode
from saddlepoint.gradients import Backprop
from saddlepoint.papers.deq import EXPERIMENTS
from saddlepoint.papers.deq.experiment import Lab, Subject, accuracy
from saddlepoint.papers.deq.gradients import Gradient, ready_made
from saddlepoint.papers.deq.grid import Grid, with_pgd
from saddlepoint.papers.deq.memory import most_bytes
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.rng import Keys
from saddlepoint.solvers import SolverStats
from saddlepoint.zoo.deq import DEQ, FinalState, MeanState, State
from saddlepoint.zoo.deq.model import SITE

ATTACK_COLUMNS = (
    "forward passes", "backward passes", "f per gradient", "products with df/dz per gradient", "ms", "kB per gradient", "final, %",
    "residual",
)  # fmt: skip
DEFENSE_COLUMNS = ("f", "kB", "clean, %", "residual")


def run(request: Request) -> Result:
    lab = Lab.open(request)
    grid = Grid.of(lab, "unrolled")
    subject = grid.subject
    states = grid.states
    attacks = _attacks(lab, grid)
    answers: dict[str, State] = {
        "Final": FinalState(),
        "Early": grid.early,
        "Ensemble": MeanState(),
    }
    rows = []
    for name, state in answers.items():
        spent = answered(subject, state)
        right = subject.right(states.clean, state.name)
        rows.append(
            Row(
                (name,),
                (
                    Cell((spent.evaluations,)),
                    Cell((spent.kilobytes,)),
                    accuracy(right),
                    states.far(state.name),
                ),
            )
        )
    defenses = Table(
        f"{subject.title}: one answer, for one image", ("defense",), DEFENSE_COLUMNS, tuple(rows), 1
    )
    stats = (
        "forward and backward passes and milliseconds: of PGD-10 on one image, a mean over the test images, on this machine",
        "f per gradient: evaluations of f for one gradient of one image, forward solve included; kB: the most that tensors made on "
        "the way take together, weights apart",
        "an early state is answered by a solver that goes on to its last step here: a deployed one would stop there",
    )
    return lab.result(
        EXPERIMENTS[9],
        [attacks, defenses, states.table()],
        states=[states],
        notes=stats,
        findings=_findings(attacks, defenses),
    )


class Spent(NamedTuple):
    """On one image."""

    evaluations: float  # of f
    products: float  # with (df/dz)^T
    kilobytes: float


def differentiated(subject: Subject, gradient: Gradient) -> Spent:
    """One gradient of the first test image."""
    x = subject.test.x[:1]
    y = subject.test.y[:1]
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
    held = most_bytes(lambda: Backprop().value_and_grad(objective, x, keys))
    return Spent(float(stats.evaluations), float(stats.products), held / 1e3)


def answered(subject: Subject, state: State) -> Spent:
    """One answer to the first test image, without a graph."""
    base = subject.defense
    defense = DEQ(base.net, method=base.method, after=base.after, state=state)
    ctx = Context(Keys.of(0, torch.arange(1, device=subject.test.x.device)), keep=defense.reads)

    def answer() -> Tensor:
        with torch.no_grad():
            return defense.respond(subject.test.x[:1], ctx)

    held = most_bytes(answer)
    return Spent(float(ctx.stats.evaluations), float(ctx.stats.products), held / 1e3)


def _attacks(lab: Lab, grid: Grid) -> Table:
    gradients = {"ready-made": ready_made(grid.subject.net), **grid.gradients}
    episodes = [grid.states.attacked, *grid.episodes(with_pgd(lab))]
    rows = [
        _row(grid, name, one, e) for (name, one), e in zip(gradients.items(), episodes, strict=True)
    ]
    title = f"{grid.subject.title}: PGD-10, for one image"
    return Table(title, ("gradient",), ATTACK_COLUMNS, tuple(rows), lab.setting.scored)


def _row(grid: Grid, name: str, gradient: Gradient, episode: Episode) -> Row:
    spent = differentiated(grid.subject, gradient)
    n = len(episode.forward)
    passes = (float(episode.forward.double().mean()), float(episode.backward.double().mean()))
    numbers = (
        *passes,
        spent.evaluations,
        spent.products,
        1000 * episode.seconds / n,
        spent.kilobytes,
    )
    right = grid.subject.right(episode, FinalState.name)
    residual = grid.states.far(gradient.state.name)
    return Row((name,), (*(Cell((number,)) for number in numbers), accuracy(right), residual))


def _findings(attacks: Table, defenses: Table) -> list[str]:
    ready = (
        attacks.cell(("ready-made",), "f per gradient").mean
        + attacks.cell(("ready-made",), "products with df/dz per gradient").mean
    )
    told = []
    for row in attacks.rows[1:]:
        spent = [attacks.cell(row.labels, column).mean for column in ATTACK_COLUMNS[2:4]]
        told.append(
            f"A gradient by {row.labels[0]} costs {sum(spent) / ready:.2f} times the evaluations and products of the ready-made."
        )
    final, ensemble = (defenses.cell((name,), "kB").mean for name in ("Final", "Ensemble"))
    told.append(
        f"The ensemble defense holds {ensemble / final:.2f} times the memory of the final state; it keeps no states but a sum."
    )
    return told
