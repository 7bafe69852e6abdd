"""SODEF and its static network at several radii, a figure that the paper does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import Adversary, Episode, FixedPoints, Threat
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import on_sodef, through_sodef
from saddlepoint.papers.adaptive.experiment import SODEF_SOLVER, AdaptiveExperiment
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.real import BATCH, FIT
from saddlepoint.papers.adaptive.real_table_2 import sodef_around_robust_net
from saddlepoint.papers.adaptive.reductions import LABEL, reductions
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Plot, Result, Row, Table
from saddlepoint.papers.runner import Runner

IMAGES = 128
FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)  # radii in units of the radius of adversarial training
COLUMNS = (
    "static network",
    "SODEF, transferred",
    "SODEF, through the ODE",
    "SODEF, worst case",
    "worst case minus static network",
)
NOTES = (
    "static network: APGD on cross-entropy, margin and targeted DLR; transferred: the points of "
    "maximal loss of these three attacks; through the ODE: the same attacks on SODEF itself, with "
    "exact gradients of the solver's steps; the strongest point per image counts",
    "worst case: SODEF on the worst of all points of its row, clean images included",
    SODEF_SOLVER,
)

Play = Callable[[Defense, Sequence[Adversary], Ball], Sequence[Episode]]


def run(request: Request) -> Result:
    """Attack SODEF and its static network at five radii."""
    experiment = AdaptiveExperiment.open(request)
    subject = experiment.subject("SODEF")

    def play(defense: Defense, attacks: Sequence[Adversary], space: Ball) -> Sequence[Episode]:
        if defense is not subject.defense:
            return experiment.play_static(subject, attacks, space=space)
        return experiment.play(subject, attacks, threat=replace(subject.threat, space=space))

    budgets = experiment.setting.attack_budgets
    rows = [
        _row(play, subject.defense, subject.static, space, budgets)
        for space in _spaces(subject.space)
    ]
    return experiment.result(
        "radii",
        [_table(subject.data, rows, len(subject.test.x))],
        subjects=[subject],
        notes=(*NOTES, _reduced(experiment.reductions("SODEF"))),
        findings=_findings(rows),
        charts=[_chart(subject.data, rows)],
    )


def run_real(request: Request) -> Result:
    """Attack SODEF around the robust CIFAR-10 network that others trained."""
    runner = Runner(request, BATCH, threads=1)
    defense, images = sodef_around_robust_net(runner, IMAGES)

    def play(defense: Defense, attacks: Sequence[Adversary], space: Ball) -> Sequence[Episode]:
        return runner.play(
            defense,
            attacks,
            images,
            threat=Threat(space),
            answers=None,
            name=f"{type(defense).__name__} on {NAME}, {space}",
            seed=request.seed,
        )

    budgets = AttackBudgets()
    static = Plain(defense.net)
    rows = [_row(play, defense, static, space, budgets) for space in _spaces(Linf(RADIUS))]
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == "adaptive/radii"),
        [_table("cifar10", rows, len(images.x))],
        notes=[
            f"static network: {NAME}, adversarially trained by others in Linf at 2/255",
            *NOTES,
            str(budgets),
            _reduced(reductions("SODEF", FIT, budgets)),
        ],
        findings=_findings(rows),
        charts=[_chart("cifar10", rows)],
        repeats=1,
    )


def _reduced(hyper_parameters: str) -> str:
    return f"{LABEL} of SODEF: {hyper_parameters}"


def _spaces(trained: Ball) -> list[Ball]:
    return [replace(trained, radius=factor * trained.radius) for factor in FACTORS]


def _row(play: Play, defense: Defense, static: Plain, space: Ball, budgets: AttackBudgets) -> Row:
    (on_static,) = play(static, [through_sodef(budgets)], space)
    attacks = [on_sodef(defense, budgets), through_sodef(budgets), FixedPoints()]
    transferred, through, clean = map(correct_rate, play(defense, attacks, space))
    worst = torch.stack([transferred, through, clean]).amin(0)
    undefended = correct_rate(on_static)
    accuracies = map(accuracy_cell, (undefended, transferred, through, worst))
    return Row((str(space),), (*accuracies, difference_cell(worst, undefended)))


def _table(data: str, rows: Sequence[Row], images: int) -> Table:
    title = f"Robust accuracy, %, {data}"
    return Table(title, ("perturbations",), COLUMNS, tuple(rows), images, digits=1)


def _findings(rows: Sequence[Row]) -> list[str]:
    return [f"{row.labels[0]}: {compared_with_static('SODEF', row.cells[-1])}." for row in rows]


def _chart(data: str, rows: Sequence[Row]) -> Plot:
    return Plot(
        "radii",
        f"SODEF and its static network, {data}, Linf",
        "radius, in units of the radius of adversarial training",
        "robust accuracy, %",
        {
            name: tuple(
                (factor, cell.mean)
                for factor, row in zip(FACTORS, rows, strict=True)
                if (cell := row.cells[k]) is not None
            )
            for k, name in enumerate(COLUMNS[:-1])
        },
        joined=True,
    )
