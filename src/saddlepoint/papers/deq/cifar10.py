"""Figure 2, Table 1 and Table 2 on one network that is trained in three ways.

At scale real it is a small convolutional network for CIFAR-10 that is trained here. Beside the
networks are their converged twins: the same weights with enough solver steps to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from saddlepoint.attacks.square import Square
from saddlepoint.papers.deq.experiment import NOTES, DEQExperiment
from saddlepoint.papers.deq.grid import NOTES as GRID_NOTES
from saddlepoint.papers.deq.grid import Grid
from saddlepoint.papers.deq.nets import exact
from saddlepoint.papers.deq.scales import SETTINGS
from saddlepoint.papers.deq.states import StateResults
from saddlepoint.papers.deq.subjects import DEQSubject, TrainedNetwork
from saddlepoint.papers.deq.three_ways import (
    GradientAttacks,
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
NETWORKS = (SHORT, "unrolled", "exact-long")
DEFENDED = ("unrolled", "exact-long")  # the networks of Table 2
TWINS = (SHORT, "unrolled")
PLAN = TrainingPlan()
SETTING = replace(
    SETTINGS["real"],
    selected_on=64,
    reduced_images=300,
    square=Square(200),
    dampings=(1.0,),
    batch=100,
)


@dataclass(frozen=True)
class TwinSetting:
    """The solver and the images of the converged twins."""

    steps: int = 50  # of the forward and of the backward solver
    selected_on: int = 64
    test_images: int = 128


TWIN = TwinSetting()
TINY_TWIN = TwinSetting(steps=12, selected_on=6, test_images=8)


@dataclass(frozen=True)
class ThreeTrainings(DEQExperiment):
    """Experiments with the networks of a training plan; None: those of the scale."""

    plan: TrainingPlan | None = None
    measured: dict[str, StateResults] = field(default_factory=dict)
    selected: dict[str, EarlyState] = field(default_factory=dict)

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
        )


def run(request: Request) -> Result:
    """Evaluate the networks that the other experiments of this scale train."""
    return _evaluate(ThreeTrainings.open(request), TINY_TWIN)


def run_real(request: Request) -> Result:
    """Train a network for CIFAR-10 in three ways, or resume its training, and evaluate it."""
    runner = Runner(request, SETTING.batch, SETTING.threads)
    return _evaluate(ThreeTrainings(request, SETTING, runner, plan=PLAN), TWIN, [PLAN.note])


def converged_twin(subject: DEQSubject, setting: TwinSetting) -> DEQSubject:
    """Return the same weights with a solver that has enough steps to converge."""
    net = subject.net.net
    return replace(
        subject,
        name=f"{subject.name} twin",
        net=exact(lambda: net, setting.steps, setting.steps).eval(),
        dev=subject.dev.first(setting.selected_on),
        test=subject.test.first(setting.test_images),
    )


def _evaluate(experiment: ThreeTrainings, twin: TwinSetting, notes: Sequence[str] = ()) -> Result:
    subjects = [experiment.subject(name) for name in NETWORKS]
    twins = [converged_twin(experiment.subject(name), twin) for name in TWINS]
    profiles = [
        Profile(experiment.states(one), experiment.early(one)) for one in (*subjects, *twins)
    ]
    attacks = [_gradients(experiment, profile) for profile in profiles]
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
    return _result(experiment, profiles, tables, notes=notes, findings=findings)


def _gradients(experiment: ThreeTrainings, profile: Profile) -> GradientAttacks:
    """Attack with both gradients; with the longest attacks only the network of Table 1."""
    name = profile.subject.name
    return attack_gradients(
        experiment,
        profile,
        long=name == SHORT,
        square=name in (SHORT, "unrolled"),
    )


def _result(
    experiment: ThreeTrainings,
    profiles: Sequence[Profile],
    tables: Sequence[Table],
    *,
    notes: Sequence[str],
    findings: Sequence[str],
) -> Result:
    subjects = [profile.subject for profile in profiles]
    hashes = [
        f"weights of {one.title}: SHA-256 `{digest(*one.net.state_dict().values())}`"
        for one in subjects[: len(NETWORKS)]
    ]
    return experiment.runner.result(
        experiment.entry(NAME),
        tables,
        notes=(
            *(one.describe() for one in subjects),
            *hashes,
            *notes,
            "twin: the same weights with a solver that has more steps, to separate what training "
            "did from what the short solver does",
            "differences: of accuracies on the same images, with a paired interval",
            experiment.setting.budgets,
            *GRID_NOTES,
            *NOTES,
        ),
        findings=[*(profile.finding for profile in profiles), *findings],
        charts=charts(NAME, profiles[: len(NETWORKS)]),
        repeats=1,
        symptoms=[symptom for one in profiles for symptom in one.states.symptoms],
    )
