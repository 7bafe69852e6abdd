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
from saddlepoint.papers.transductive.experiment import Base, Lab, about, climbing
from saddlepoint.papers.transductive.scales import Cleansing
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

    lab: Lab
    kind: Cleansing
    defenses: dict[str, RMC] = field(default_factory=dict)  # by the name of the base network

    def defense(self, name: str) -> RMC:
        """RMC on the base network of this name.

        Args:
            name: Name of the recipe of the base network.

        Returns:
            The defense with its library of clean and attacked training images.
        """
        if name not in self.defenses:
            net = self.lab.net(name)
            self.defenses[name] = RMC(
                net, self._library(name), neighbors=self.kind.neighbors, tuning=self.kind.tuning
            )
        return self.defenses[name]

    def _library(self, name: str) -> Library:
        kind = self.kind
        net = self.lab.net(name)
        images = self.lab.training(kind.data, kind.library)
        with torch_threads(self.lab.setting.threads):
            return Library.build(
                net,
                images.x.to(next(net.parameters()).device),
                images.y,
                space=self.lab.recipe(name).space,
                attack=kind.crafted,
                copies=kind.copies,
                augment=kind.augment,
                seed=self.lab.request.seed,
            )

    def evaluate(self, base: str, seed: int, *, all_attacks: bool) -> RMCResult:
        """Evaluate RMC on clean images and under GMSA.

        Args:
            base: A name in `BASES`.
            seed: Seed that draws the stream of images.
            all_attacks: Also run the attacks that Table 6 omits: AutoAttack, PGD and FPA.

        Returns:
            The base network and one episode per attack.
        """
        kind = self.kind
        name = f"{kind.data} {base.lower()}"
        images = self.lab.drawn(kind.data, kind.images, seed)
        static = self.lab.base(name, images, climbing(kind.attack))
        direct = Direct("pgd", kind.attack, cross_entropy)
        adversaries: dict[str, Adversary] = {
            "clean": FixedPoints(),
            "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, kind.rounds),
            "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, kind.rounds, MinLoss()),
        }
        if all_attacks:
            adversaries |= static.handed
            adversaries["FPA"] = FixedPoint("fpa", direct, kind.rounds)
        threat = Threat(static.space, state_visible=False)
        episodes = self.lab.against(
            self.defense(name), adversaries, images, threat, batch=1, seed=seed
        )
        return RMCResult(static, episodes)

    def notes(self) -> tuple[str, ...]:
        """Base networks, library and attack settings, in words."""
        kind = self.kind
        lab = self.lab
        names = [f"{kind.data} {base.lower()}" for base in BASES]
        library = self.defense(names[0]).library
        return (
            *(
                about(name, lab.net(name), lab.recipe(name).space, lab.recipe(name))
                for name in names
            ),
            f"{kind.data}: the library D' has {library.clean} clean training images and "
            f"{len(library.x) - library.clean} attacked ones; K = {kind.neighbors} neighbors; at "
            f"most {kind.tuning.epochs} epochs with learning rate {kind.tuning.rate:g}, stopped "
            f"after {kind.tuning.patience} epochs without a lower loss on held-out neighbors",
            f"{kind.data}: PGD with {kind.attack.steps} steps; FPA and GMSA with {kind.rounds} "
            "rounds per image",
        )


def units(streams: int, images: int) -> str:
    """How the images are divided into streams, in words."""
    stream = "one stream" if streams == 1 else f"{streams} streams"
    return f"in {stream} of {images} single images"
