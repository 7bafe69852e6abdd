"""Runtime masking and cleansing on sequences of images: what Tables 1 and 6 share."""

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
class Sequenced:
    """One sequence of images: what the static network and RMC on it make of them."""

    base: Base
    episodes: dict[str, Episode]  # of RMC, by attack


@dataclass(frozen=True)
class Masking:
    """RMC in a lab. Libraries are built once for every base."""

    lab: Lab
    kind: Cleansing
    defenses: dict[str, RMC] = field(default_factory=dict)

    def defense(self, name: str) -> RMC:
        if name not in self.defenses:
            kind = self.kind
            recipe = self.lab.recipe(name)
            net = self.lab.net(name)
            images = self.lab.training(kind.data, kind.library)
            with torch_threads(self.lab.setting.threads):
                library = Library.build(
                    net, images.x.to(next(net.parameters()).device), images.y, space=recipe.space, attack=kind.crafted,
                    copies=kind.copies, augment=kind.augment, seed=self.lab.request.seed,
                )  # fmt: skip
            self.defenses[name] = RMC(net, library, neighbors=kind.neighbors, tuning=kind.tuning)
        return self.defenses[name]

    def played(self, base: str, seed: int, *, everything: bool) -> Sequenced:
        """RMC clean and under GMSA on the sequence of this seed; with `everything` also under what Table 6 leaves out."""
        kind = self.kind
        name = f"{self.kind.data} {base.lower()}"
        images = self.lab.drawn(kind.data, kind.images, seed)
        static = self.lab.base(name, images, climbing(kind.attack))
        direct = Direct("pgd", kind.attack, cross_entropy)
        sent: dict[str, Adversary] = {
            "clean": FixedPoints(),
            "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, kind.rounds),
            "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, kind.rounds, MinLoss()),
        }
        sent |= (
            {**static.handed, "FPA": FixedPoint("fpa", direct, kind.rounds)} if everything else {}
        )
        threat = Threat(static.space, state_visible=False)
        return Sequenced(
            static, self.lab.against(self.defense(name), sent, images, threat, batch=1, seed=seed)
        )

    def notes(self) -> tuple[str, ...]:
        kind = self.kind
        lab = self.lab
        names = [f"{kind.data} {base.lower()}" for base in BASES]
        shelf = self.defense(names[0]).library
        return (
            *(
                about(name, lab.net(name), lab.recipe(name).space, lab.recipe(name))
                for name in names
            ),
            f"{kind.data}: D' holds {shelf.clean} clean training images and {len(shelf.x) - shelf.clean} attacked ones; K = "
            f"{kind.neighbors} neighbors, at most {kind.tuning.epochs} epochs at a rate of {kind.tuning.rate:g}, stopped after "
            f"{kind.tuning.patience} without a lower loss on what is held out",
            f"{kind.data}: PGD with {kind.attack.steps} steps, FPA and GMSA with {kind.rounds} rounds on every image",
        )


def units(streams: int, images: int) -> str:
    stream = "one stream" if streams == 1 else f"{streams} streams"
    return f"in {stream} of {images} batches of one"
