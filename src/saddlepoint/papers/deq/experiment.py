"""What the experiments of this paper share: equilibrium networks, their states, and attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Adversary, Episode, FixedPoints
from saddlepoint.papers.deq import EXPERIMENTS, third_party
from saddlepoint.papers.deq.gradients import Gradient, adjoint_at, ready_made, unrolled_at
from saddlepoint.papers.deq.nets import recipes
from saddlepoint.papers.deq.scales import SETTINGS, DEQSetting
from saddlepoint.papers.deq.states import (
    StateResults,
    convergence_warnings,
    end_residuals,
    residuals,
)
from saddlepoint.papers.deq.subjects import DEQSubject, TrainedNetwork
from saddlepoint.papers.experiment import PaperExperiment, device_of
from saddlepoint.papers.registry import Experiment, Scale
from saddlepoint.papers.result import HeatMap, Plot, Result, Table
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import split
from saddlepoint.zoo.deq import EarlyState, Solved

NOTES = (
    "an attack returns the visited point with the highest value of its objective; the released "
    "code returns the last point",
    "the early state and the intermediate attacks are selected on images that are not scored; the "
    "released code has no such split",
    "every image is solved independently; in the released code the output for an image depends on "
    "its batch",
    "adjoint: u_n is updated with B_n^T, Eq. 10 transposed, with beta = 0.9; the paper's beta is "
    "in an appendix that was not available",
    "residual: relative, ||f(z) - z|| / ||f(z)||, the median over the images",
)


@dataclass(frozen=True)
class DEQExperiment(PaperExperiment[DEQSetting]):
    """Experiments with deep equilibrium models."""

    experiments: ClassVar[tuple[Experiment, ...]] = EXPERIMENTS

    networks: dict[str, TrainedNetwork] = field(default_factory=dict)  # loaded so far

    @classmethod
    def settings(cls) -> Mapping[Scale, DEQSetting]:
        """Return the settings for each scale."""
        return SETTINGS

    def subject(self, name: str) -> DEQSubject:
        """Return the trained equilibrium network of this name."""
        network = self.network(name)
        assert isinstance(network, DEQSubject), f"{name} is not an equilibrium network"
        return network

    def network(self, name: str) -> TrainedNetwork:
        """Return the trained network of this name with its images."""
        if name not in self.networks:
            self.networks[name] = self._load(name)
        return self.networks[name]

    @property
    def exact_networks(self) -> tuple[str, ...]:
        """The names of the networks with exact gradients, by their number of solver steps."""
        real = self.request.scale == "real"
        names = third_party.CHOICES if real else recipes(self.request.scale)
        return tuple(name for name in names if name.startswith("exact-"))

    def _load(self, name: str) -> TrainedNetwork:
        if self.request.scale == "real":
            return self._third_party(name)
        recipe = recipes(self.request.scale)[name]
        setting = self.setting
        images = self.training_images(recipe.data, recipe.n)
        net = self.train(recipe, images)
        rows = split(len(images.x), recipe.dev_share, self.request.seed).dev[: setting.selected_on]
        dev = Images(images.x[rows], images.y[rows]).to(device_of(net))
        test = self.test_images(recipe.data, setting.test_images, device_of(net))
        if isinstance(net, Solved):
            return DEQSubject(name, net, recipe.space, recipe.data, dev, test)
        return TrainedNetwork(name, net, recipe.space, recipe.data, dev, test)

    def _third_party(self, name: str) -> DEQSubject:
        """Return a third-party network; it was trained on all training images."""
        setting = self.setting
        count = setting.test_images + setting.selected_on
        images = self.test_images(third_party.DATA, count, torch.device("cpu"))
        dev = Images(images.x[setting.test_images :], images.y[setting.test_images :])
        return third_party.subject(self.runner, name, images.first(setting.test_images), dev)

    def reduced_images(self, network: TrainedNetwork) -> Images:
        """Return the test images that AutoAttack attacks."""
        return network.test.first(self.setting.reduced_images)

    def play(
        self, network: TrainedNetwork, adversaries: Sequence[Adversary], images: Images
    ) -> list[Episode]:
        """Run each adversary on these images; every state of an equilibrium network is scored."""
        if isinstance(network, DEQSubject):
            return self.run_attacks(
                network.defense,
                adversaries,
                images,
                threat=network.space,
                answers=network.answers,
                name=network.name,
            )
        return self.run_attacks(
            Plain(network.net), adversaries, images, threat=network.space, name=network.name
        )

    def states(self, subject: DEQSubject) -> StateResults:
        """Measure accuracy and residual of every state, clean and under the ready-made attack."""
        attack = ready_made(subject.net).pgd(self.setting.pgd)
        clean, attacked = self.play(subject, [FixedPoints(), attack], subject.test)
        points = {"clean": subject.test.x, "attacked": attacked.points.to(subject.test.x.device)}
        batch = self.setting.batch
        with torch_threads(self.setting.threads):
            by_state = {kind: residuals(subject.defense, x, batch) for kind, x in points.items()}
            at_end = {kind: end_residuals(subject.defense, x, batch) for kind, x in points.items()}
        return StateResults(
            subject=subject,
            clean=clean,
            attacked=attacked,
            residual=by_state["clean"],
            residual_attacked=by_state["attacked"],
            symptoms=tuple(convergence_warnings(subject.title, at_end)),
        )

    def early(self, subject: DEQSubject) -> EarlyState:
        """Return the z_n with the highest accuracy under the ready-made attack (Sec. 5.2).

        The accuracy is measured on held-out images. If several are equal, the smallest n is used.
        """
        attack = ready_made(subject.net).pgd(self.setting.pgd)
        (episode,) = self.play(subject, [attack], subject.dev)
        states = (EarlyState(n) for n in range(1, subject.steps + 1))
        return max(states, key=lambda state: float(subject.correct(episode, state.name).mean()))

    def candidates(self, subject: DEQSubject) -> tuple[list[Gradient], list[Gradient]]:
        """Return the intermediate gradients: those of the adjoint process and unrolled ones."""
        numbers = range(1, min(self.setting.states, subject.steps) + 1)
        unrolled = [
            unrolled_at(n, steps, damping)
            for n in numbers
            for steps in self.setting.unrolled
            for damping in self.setting.dampings
        ]
        return [adjoint_at(n) for n in numbers], unrolled

    def strongest(
        self, subject: DEQSubject, gradients: Sequence[Gradient], early: EarlyState
    ) -> Gradient:
        """Return the gradient with the strongest attack on the early state (Sec. 6.2).

        The attacks are compared on held-out images.
        """
        attacks = [gradient.pgd(self.setting.pgd) for gradient in gradients]
        episodes = self.play(subject, attacks, subject.dev)
        accuracies = [float(subject.correct(episode, early.name).mean()) for episode in episodes]
        return gradients[accuracies.index(min(accuracies))]

    def result(
        self,
        name: str,
        tables: Sequence[Table],
        *,
        states: Sequence[StateResults] = (),
        others: Sequence[TrainedNetwork] = (),
        notes: Sequence[str] = (),
        findings: Sequence[str] = (),
        charts: Sequence[HeatMap | Plot] = (),
    ) -> Result:
        """Assemble the result of one experiment.

        Args:
            name: name of the experiment without the paper, for example "table-1".
            tables: the measured tables.
            states: the states of the equilibrium networks, for descriptions and warnings.
            others: other networks to describe in the notes.
            notes: further notes.
            findings: conclusions.
            charts: charts to draw.
        """
        networks = [*(one.subject for one in states), *others]
        if self.request.scale == "real":
            notes = (third_party.note([network.name for network in networks]), *notes)
        descriptions = (network.describe() for network in networks)
        return self.runner.result(
            self.entry(name),
            tables,
            notes=(*descriptions, self.setting.budgets, *notes, *NOTES),
            findings=findings,
            charts=charts,
            repeats=1,
            symptoms=[symptom for one in states for symptom in one.symptoms],
        )


def stack_correct(subject: DEQSubject, episodes: Sequence[Episode], names: Sequence[str]) -> Tensor:
    """Return the correct predictions [A, D, N] by attack, state and example."""
    return torch.stack(
        [torch.stack([subject.correct(episode, name) for name in names]) for episode in episodes]
    )
