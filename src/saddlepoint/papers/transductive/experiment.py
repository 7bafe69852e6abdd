"""What the experiments of this paper share: static networks, attacks on them, and defenses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain, view
from saddlepoint.evaluation import Adversary, Direct, Episode, FixedPoints, MaxLossPoint, Threat
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.cells import correct_rate, difference_text, repeated_accuracy_cell
from saddlepoint.papers.experiment import PaperExperiment, describe_net
from saddlepoint.papers.registry import Experiment, Scale
from saddlepoint.papers.result import Cell, Plot, Result, Table
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import EXPERIMENTS
from saddlepoint.papers.transductive.nets import recipes
from saddlepoint.papers.transductive.scales import SETTINGS, TransductiveSetting
from saddlepoint.rng import Keys
from saddlepoint.training import Recipe
from saddlepoint.training.loop import permutation

MAX_LOSS_POINTS = "AA, max-loss points"
TRANSFERRED = ("AA", MAX_LOSS_POINTS, "PGD")
NOTES = (
    "AA: points of AutoAttack on the static network, and the clean image where it fails, as its "
    f"published code returns them; {MAX_LOSS_POINTS}: the point of highest loss where it fails",
    "attackers know neither the state of the defender (state_visible=False) nor its random keys; "
    "they simulate the defender with their own keys",
    "FPA and GMSA return the round in which the simulated defender is least accurate; the released "
    "code may return clean images",
)


@dataclass(frozen=True)
class Base:
    """A trained static network and the results of attacks on it."""

    name: str
    net: nn.Module
    images: Images  # attacked test images
    space: Ball  # allowed perturbations
    clean: Episode
    auto: Episode  # under AutoAttack
    pgd: Episode  # under PGD

    @property
    def transferred_points(self) -> dict[str, FixedPoints]:
        """The points found on this network, for transfer to a defense that is based on it."""
        wrong = self.auto.correct[0].to(self.images.x.device) == 0
        clean_copies = torch.where(
            per_example(wrong, self.images.x), self.auto.points, self.images.x
        )
        points = (clean_copies, self.auto.points, self.pgd.points)
        return {name: FixedPoints(name, one) for name, one in zip(TRANSFERRED, points, strict=True)}


@dataclass(frozen=True)
class TransductiveExperiment(PaperExperiment[TransductiveSetting]):
    """Experiments with transductive defenses."""

    experiments: ClassVar[tuple[Experiment, ...]] = EXPERIMENTS

    networks: dict[str, nn.Module] = field(default_factory=dict)  # trained or loaded so far

    @classmethod
    def settings(cls) -> Mapping[Scale, TransductiveSetting]:
        """Return the settings for each scale."""
        return SETTINGS

    def recipe(self, name: str) -> Recipe:
        """Return the training recipe of this name."""
        return recipes(self.request.scale)[name]

    def net(self, name: str, number: int | None = None) -> nn.Module:
        """Return the trained network of a recipe.

        Args:
            name: name of the recipe.
            number: number of one of several networks that differ only in their seeds; None: the
                network with the seed of the request.
        """
        key = name if number is None else f"{name} {number}"
        if key not in self.networks:
            recipe = replace(self.recipe(name), name=key)
            images = self.training_images(recipe.data, recipe.n)
            self.networks[key] = self.train(recipe, images, self._seed(number))
        return self.networks[key]

    def _seed(self, number: int | None) -> int:
        if number is None:
            return self.request.seed
        # The authors' code uses the seeds 100 (i + 1).
        return 1000 * self.request.seed + 100 * (number + 1)

    def draw_images(self, data: str, n: int, seed: int) -> Images:
        """Return a random sequence of n test images, determined by the seed."""
        found = load_data(data, split="test", root=self.request.data)
        rows = permutation(Keys.of(seed, torch.arange(len(found))))[:n]
        return Images(found.x[rows], found.y[rows])

    def base(self, name: str, images: Images, pgd: Adversary, number: int | None = None) -> Base:
        """Attack a static network with AutoAttack and with PGD.

        Args:
            name: name of the network's recipe.
            images: attacked images.
            pgd: the second attack.
            number: number of the network, as in `net`.
        """
        net = self.net(name, number)
        space = self.recipe(name).space
        attacks: list[Adversary] = [FixedPoints(), self.setting.auto.attack(), pgd]
        clean, auto, attacked = self.attack_static(net, attacks, images, space, name)
        return Base(name, net, images, space, clean, auto, attacked)

    def attack_static(
        self,
        net: nn.Module,
        adversaries: Sequence[Adversary],
        images: Images,
        space: Ball,
        name: str,
    ) -> list[Episode]:
        """Run each adversary against a static network.

        The answer is declared explicitly, so images that the network misclassifies are attacked as
        well.

        Args:
            net: the network.
            adversaries: the attacks.
            images: attacked images.
            space: allowed perturbations.
            name: name of the network.
        """
        return self.run_attacks(
            Plain(net),
            adversaries,
            images,
            threat=space,
            answers={"final": view("final")},
            name=name,
        )

    def attack_defense(
        self,
        defense: Defense,
        adversaries: Mapping[str, Adversary],
        images: Images,
        threat: Threat,
        *,
        batch: int,
        seed: int | None = None,
    ) -> dict[str, Episode]:
        """Run adversaries against a defense that adapts at test time.

        Args:
            defense: the defense.
            adversaries: the attacks by column of the table.
            images: attacked images.
            threat: threat model.
            batch: images per batch.
            seed: seed of the random keys; default: the seed of the request.

        Returns:
            The episodes by column.
        """
        episodes = self.run_attacks(
            defense,
            list(adversaries.values()),
            images,
            threat=threat,
            name=f"{type(defense).__name__} on {len(images.x)} images",
            seed=seed,
            batch=batch,
        )
        return dict(zip(adversaries, episodes, strict=True))

    def result(
        self,
        experiment: Experiment,
        tables: Sequence[Table],
        *,
        notes: Sequence[str],
        findings: Sequence[str],
        charts: Sequence[Plot] = (),
        repeats: int = 1,
    ) -> Result:
        """Assemble the result of one experiment.

        Args:
            experiment: the reproduced table or figure.
            tables: the measured tables.
            notes: further notes.
            findings: conclusions.
            charts: charts to draw.
            repeats: number of repeated measurements.
        """
        return self.runner.result(
            experiment,
            tables,
            notes=(*notes, f"on static networks: {self.setting.auto}", *NOTES),
            findings=findings,
            charts=charts,
            repeats=repeats,
        )


def accuracy(episodes: Sequence[Episode], paper: float | None = None) -> Cell:
    """Make a cell with one accuracy in percent per repeat."""
    return repeated_accuracy_cell([correct_rate(episode) for episode in episodes], paper)


def format_difference(first: Episode | Tensor, second: Episode | Tensor) -> str:
    """Format the difference of two accuracies on the same images with its interval.

    Args:
        first: an episode or correct rates [N].
        second: what is subtracted, on the same images.
    """
    minuend, subtrahend = (
        one if isinstance(one, Tensor) else correct_rate(one) for one in (first, second)
    )
    return difference_text(mean_of(minuend - subtrahend))


def max_loss_pgd(pgd: PGD) -> MaxLossPoint:
    """Return PGD on the cross-entropy that returns its points of highest loss.

    The points are scored on other networks than the attacked one, so success on the attacked
    network does not select them.
    """
    return MaxLossPoint(Direct("pgd", pgd, cross_entropy))


def describe(name: str, net: nn.Module, space: Ball, recipe: Recipe) -> str:
    """Describe a network in one line."""
    return describe_net(name, net, recipe.data, space)
