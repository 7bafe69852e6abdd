"""Figure 2, Table 1 and Table 2 on one network that is trained in three ways.

At scale real it is a small convolutional network for CIFAR-10 that is trained here. Beside the
networks are their converged twins: the same weights with enough solver steps to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Radii
from saddlepoint.attacks.square import Square
from saddlepoint.papers.deq.experiment import NOTES, DEQExperiment
from saddlepoint.papers.deq.grid import NOTES as GRID_NOTES
from saddlepoint.papers.deq.grid import Grid
from saddlepoint.papers.deq.nets import exact
from saddlepoint.papers.deq.scales import SETTINGS
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.subjects import DEQSubject, TrainedNetwork
from saddlepoint.papers.deq.three_ways import (
    Profile,
    attack_gradients,
    attacks_table,
    charts,
    defenses_table,
    effects_table,
    profiles_table,
)
from saddlepoint.papers.deq.trained_here import TrainingPlan
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Table
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.training.checkpoint import digest
from saddlepoint.zoo.deq import EarlyState, Solved

NAME = "cifar10"
SHORT = "exact-short"
NETWORKS = (SHORT, "unrolled", "exact-long")  # of the scales other than real
LONG = frozenset({SHORT})  # networks that are attacked with PGD-1000, as in Table 1
SCORED = frozenset({SHORT, "unrolled", "exact-shortest"})  # networks that Square attacks
DEFENDED = ("unrolled", "exact-long")  # the networks of Table 2
PLAN = TrainingPlan()
SETTING = replace(
    SETTINGS["real"],
    selected_on=64,
    test_images=500,
    reduced_images=200,
    long=PGD(25, Radii(1 / 4)),
    square=Square(150),
    states=5,
    dampings=(1.0,),
    batch=100,
)


@dataclass(frozen=True)
class Twin:
    """The weights of a trained network with another solver."""

    network: str  # the trained network
    kind: str
    forward: int  # solver steps
    backward: int
    selected_on: int = 32
    test_images: int = 128

    def of(self, subject: DEQSubject) -> DEQSubject:
        """Return the network with this solver and the exact gradient."""
        net = subject.net.net
        return replace(
            subject,
            name=f"{subject.name} {self.kind}",
            net=exact(lambda: net, self.forward, self.backward).eval(),
            dev=subject.dev.first(self.selected_on),
            test=subject.test.first(self.test_images),
        )


TWINS = (
    Twin(SHORT, "converged", 50, 50),
    Twin("exact-shortest", "converged", 50, 50),
)
FEW_STEPS = (Twin(SHORT, "converged", 12, 12, selected_on=6),)


@dataclass(frozen=True)
class ThreeTrainings(DEQExperiment):
    """Experiments with the networks of a training plan; None: those of the scale."""

    plan: TrainingPlan | None = None
    measured: dict[str, StateResults] = field(default_factory=dict)
    selected: dict[str, EarlyState] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trained networks."""
        return tuple(self.plan.solvers) if self.plan else NETWORKS

    def states(self, subject: DEQSubject) -> StateResults:
        """Measure every state of a network once."""
        if subject.name not in self.measured:
            self.measured[subject.name] = super().states(subject)
        return self.measured[subject.name]

    def early(self, subject: DEQSubject) -> EarlyState:
        """Select the early state of a network once."""
        if subject.name not in self.selected:
            self.selected[subject.name] = super().early(subject)
        return self.selected[subject.name]

    def _load(self, name: str) -> TrainedNetwork:
        """Train the network, or reuse it; states are selected on test images.

        The start of all networks was trained on nearly all training images.
        """
        if self.plan is None:
            return super()._load(name)
        start = self.plan.start()
        first = self.train(start, self.training_images(start.data, start.n))
        recipe = self.plan.recipe(name, first)
        net = self.train(recipe, self.training_images(recipe.data, recipe.n))
        assert isinstance(net, Solved)
        scored = self.setting.test_images
        count = scored + self.setting.selected_on
        images = self.test_images(recipe.data, count, torch.device("cpu"))
        return DEQSubject(
            name,
            net.requires_grad_(False).cpu(),
            recipe.space,
            recipe.data,
            Images(images.x[scored:], images.y[scored:]),
            images.first(scored),
            "test images that are not scored",
            comparable=name not in self.plan.incomparable,
        )


def run(request: Request) -> Result:
    """Evaluate the networks that the other experiments of this scale train."""
    return _evaluate(ThreeTrainings.open(request), FEW_STEPS)


def run_real(request: Request) -> Result:
    """Train a network for CIFAR-10 in three ways, or resume its training, and evaluate it."""
    runner = Runner(request, SETTING.batch, SETTING.threads)
    return _evaluate(ThreeTrainings(request, SETTING, runner, plan=PLAN), TWINS, [PLAN.note])


def _evaluate(
    experiment: ThreeTrainings, twins: Sequence[Twin], notes: Sequence[str] = ()
) -> Result:
    subjects = [experiment.subject(name) for name in experiment.names]
    others = [twin.of(experiment.subject(twin.network)) for twin in twins]
    profiles = [
        Profile(experiment.states(one), experiment.early(one)) for one in (*subjects, *others)
    ]
    attacks = [
        attack_gradients(
            experiment, one, long=one.subject.name in LONG, square=one.subject.name in SCORED
        )
        for one in profiles
    ]
    grids = [Grid.of(experiment, name) for name in DEFENDED]
    defenses, effects, findings = defenses_table(experiment, grids)
    tables = [
        profiles_table(profiles),
        attacks_table(attacks),
        effects_table(
            [
                *(profile.effect for profile in profiles),
                *(effect for one in attacks for effect in one.effects),
                *effects,
            ]
        ),
        defenses,
        *(profile.states.table() for profile in profiles[: len(subjects)]),
    ]
    return _result(experiment, profiles, len(subjects), tables, notes=notes, findings=findings)


def _result(
    experiment: ThreeTrainings,
    profiles: Sequence[Profile],
    trained: int,  # the first profiles are those of trained networks, the others of twins
    tables: Sequence[Table],
    *,
    notes: Sequence[str],
    findings: Sequence[str],
) -> Result:
    subjects = [profile.subject for profile in profiles]
    hashes = [
        f"weights of {one.title}: SHA-256 `{digest(*one.net.state_dict().values())}`"
        for one in subjects[:trained]
    ]
    return experiment.runner.result(
        experiment.entry(NAME),
        tables,
        notes=(
            *(one.describe() for one in subjects),
            *hashes,
            *notes,
            "converged: the weights of a trained network with a solver of more steps, to separate "
            "what training does from what the solver does",
            "differences: of accuracies on the same images, with a paired interval",
            experiment.setting.budgets,
            *GRID_NOTES,
            *NOTES,
        ),
        findings=[*(profile.finding for profile in profiles), *findings],
        charts=charts(NAME, profiles[:trained]),
        repeats=1,
        symptoms=[symptom for one in profiles for symptom in one.states.symptoms],
    )
