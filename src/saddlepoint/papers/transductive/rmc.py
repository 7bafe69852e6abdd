"""Runtime masking and cleansing (RMC) on streams of single images; shared by Tables 1 and 6."""

from __future__ import annotations

from dataclasses import dataclass, field

from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Episode,
    FixedPoint,
    FixedPoints,
    GreedyModelSpace,
    Threat,
)
from saddlepoint.papers.transductive.experiment import (
    Base,
    TransductiveExperiment,
    describe,
    max_loss_pgd,
)
from saddlepoint.papers.transductive.scales import RMCSetting
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.transductive import RMC, Library

BASES = ("Standard", "Madry")
GREEDY = ("GMSA-AVG", "GMSA-MIN")


@dataclass(frozen=True)
class RMCResult:
    """The static network and RMC on one stream of images."""

    base: Base
    episodes: dict[str, Episode]  # of RMC, by attack


@dataclass(frozen=True)
class RMCExperiment:
    """Builds RMC and attacks it. The library D' is built once per base network."""

    experiment: TransductiveExperiment
    setting: RMCSetting
    defenses: dict[str, RMC] = field(default_factory=dict)  # by the name of the base network

    def defense(self, name: str) -> RMC:
        """RMC on the base network of this name.

        Args:
            name: name of the recipe of the base network.

        Returns:
            The defense with its library of clean and attacked training images.
        """
        if name not in self.defenses:
            net = self.experiment.net(name)
            self.defenses[name] = RMC(
                net,
                self._library(name),
                neighbors=self.setting.neighbors,
                tuning=self.setting.tuning,
            )
        return self.defenses[name]

    def _library(self, name: str) -> Library:
        setting = self.setting
        net = self.experiment.net(name)
        images = self.experiment.training_images(setting.data, setting.library)
        with torch_threads(self.experiment.setting.threads):
            return Library.build(
                net,
                images.x.to(next(net.parameters()).device),
                images.y,
                space=self.experiment.recipe(name).space,
                attack=setting.copy_attack,
                copies=setting.copies,
                augment=setting.augment,
                seed=self.experiment.request.seed,
            )

    def evaluate(self, base: str, seed: int, *, all_attacks: bool) -> RMCResult:
        """Evaluate RMC on clean images and under GMSA.

        Args:
            base: a name in `BASES`.
            seed: seed that draws the stream of images.
            all_attacks: also run the attacks that Table 6 omits: AutoAttack, PGD and FPA.

        Returns:
            The base network and one episode per attack.
        """
        setting = self.setting
        name = f"{setting.data} {base.lower()}"
        images = self.experiment.draw_images(setting.data, setting.images, seed)
        static = self.experiment.base(name, images, max_loss_pgd(setting.attack))
        direct = Direct("pgd", setting.attack, cross_entropy)
        adversaries: dict[str, Adversary] = {
            "clean": FixedPoints(),
            "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, setting.rounds),
            "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, setting.rounds, MinLoss()),
        }
        if all_attacks:
            adversaries |= static.transferred_points
            adversaries["FPA"] = FixedPoint("fpa", direct, setting.rounds)
        threat = Threat(static.space, state_visible=False)
        episodes = self.experiment.attack_defense(
            self.defense(name), adversaries, images, threat, batch=1, seed=seed
        )
        return RMCResult(static, episodes)

    def notes(self) -> tuple[str, ...]:
        """Base networks, library and attack settings, in words."""
        setting = self.setting
        tuning = setting.tuning
        names = [f"{setting.data} {base.lower()}" for base in BASES]
        library = self.defense(names[0]).library
        return (
            *(self._describe(name) for name in names),
            f"{setting.data}: the library D' has {library.clean} clean training images and "
            f"{len(library.x) - library.clean} attacked by PGD with {setting.copy_attack.steps} "
            f"steps; K = {setting.neighbors} neighbors; "
            f"at most {tuning.epochs} epochs with learning rate {tuning.rate:g}, stopped after "
            f"{tuning.patience} epochs without a lower loss on held-out neighbors",
            f"{setting.data}: PGD with {setting.attack.steps} steps; FPA and GMSA with "
            f"{setting.rounds} rounds per image",
            *setting.changed,
        )

    def _describe(self, name: str) -> str:
        recipe = self.experiment.recipe(name)
        return describe(name, self.experiment.net(name), recipe.space, recipe)


def units(streams: int, images: int) -> str:
    """How the images are divided into streams, in words."""
    stream = "one stream" if streams == 1 else f"{streams} streams"
    return f"in {stream} of {images} single images"
