"""Six defenses that learn at test time on the digits (Chen et al. 2022).

Settings are those of their papers for MNIST, or for CIFAR-10 where there are none; lengths are scaled to the digits' radius, and
networks and numbers of images to 1297 training digits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import Data, load_data
from saddlepoint.defenses import Defense
from saddlepoint.evaluation import BatchControl, Threat
from saddlepoint.training.recipe import unchanged
from saddlepoint.zoo.embedded.base import RADIUS, Kit
from saddlepoint.zoo.layers import features, penultimate
from saddlepoint.zoo.nets.dann import digits_two_heads
from saddlepoint.zoo.nets.lenet import lenet
from saddlepoint.zoo.recipes import recipe
from saddlepoint.zoo.transductive import (
    DANN,
    DENT,
    RMC,
    TADV,
    TENT,
    Distinguishing,
    DomainTraining,
    Library,
    Trainer,
    Tuning,
    URejectron,
)


@dataclass(frozen=True)
class DENTKit(Kit):
    """DENT+, as it was evaluated; it learns nothing beforehand."""

    name: str = "digits-dent"
    base: str = "digits-resnet"
    kind: ClassVar[type[Defense]] = DENT

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> DENT:  # noqa: ARG002
        return DENT(net)


@dataclass(frozen=True)
class TENTKit(Kit):
    """As released, online: what it learns from a batch stays."""

    name: str = "digits-tent"
    base: str = "digits-resnet"
    kind: ClassVar[type[Defense]] = TENT

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> TENT:  # noqa: ARG002
        return TENT(net)


@dataclass(frozen=True)
class RMCKit(Kit):
    """Learning rate and the one attacked copy are those for MNIST; of 2594 images in the library 128 are near, instead of 1024.

    The attacked copies were made once, by PGD with steps of a thirtieth of the radius as there, and are kept as images of 256
    levels. A network is tuned twice for every answer: for at most 10 epochs instead of 100, and measured with coins tossed once.
    """

    name: str = "digits-rmc"
    base: str = "digits-resnet"
    measured_on: int = 6
    neighbors: int = 128
    tuning: Tuning = field(default_factory=lambda: Tuning(epochs=10, rate=2e-4))
    attack: PGD = field(default_factory=lambda: PGD(steps=40, step_size=0.01 / 0.3 * RADIUS))
    kind: ClassVar[type[Defense]] = RMC

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        library = Library.build(
            net,
            x,
            y,
            space=Linf(RADIUS),
            attack=self.attack,
            copies=1,
            augment=unchanged,
            seed=seed,
        )
        return {"attacked": (255 * library.x[library.clean :]).round().to(torch.uint8)}

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> RMC:
        known = training_digits()
        whole = torch.cat([known.x, weights["attacked"].to(known.x) / 255])
        # In double precision, then rounded: the library must not depend on how many threads add up.
        exact = copy.deepcopy(net).double()
        seen = features(exact, whole.double(), penultimate(exact)).to(whole)
        return RMC(
            net,
            Library(whole, known.y.repeat(2), seen, len(known)),
            neighbors=self.neighbors,
            tuning=self.tuning,
        )

    def threat(self) -> Threat:
        return Threat(Linf(self.radius), randomness="fixed")


@dataclass(frozen=True)
class DANNKit(Kit):
    """Trained from scratch for every batch, as for MNIST, in batches half as large; measured with coins tossed once."""

    name: str = "digits-dann"
    base: str = "digits-two-heads"
    training: DomainTraining = field(
        default_factory=lambda: DomainTraining(build=digits_two_heads, batch_size=64)
    )
    kind: ClassVar[type[Defense]] = DANN

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> DANN:  # noqa: ARG002
        known = training_digits()
        return DANN(net, known.x, known.y, training=self.training)

    def threat(self) -> Threat:
        return Threat(Linf(self.radius), randomness="fixed")


@dataclass(frozen=True)
class TADVKit(Kit):
    """Trains by the recipe of its base, a third as long, for every batch with fresh coins: there is no pool to know beforehand."""

    name: str = "digits-tadv"
    base: str = "digits-lenet"
    draws: int = 1
    rounds: int = 2
    epochs: int = 5
    kind: ClassVar[type[Defense]] = TADV

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> TADV:  # noqa: ARG002
        known = training_digits()
        return TADV(net, Trainer(replace(recipe(self.base), epochs=self.epochs), known.x, known.y))


@dataclass(frozen=True)
class URejectronKit(Kit):
    """The discriminator is small, and meets about as many digits from training as from the batch, as in the paper.

    Measured with half of a batch attacked, also as there: else nothing must not be refused.
    """

    name: str = "digits-urejectron"
    base: str = "digits-standard"
    draws: int = 2
    share: float = 0.5
    known: int = 128  # training digits
    training: Distinguishing = field(
        default_factory=lambda: Distinguishing(build=digits_domains, epochs=15)
    )
    kind: ClassVar[type[Defense]] = URejectron

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> URejectron:  # noqa: ARG002
        return URejectron(net, training_digits().x[: self.known], training=self.training)

    def threat(self) -> Threat:
        return Threat(Linf(self.radius), draws=self.draws, batch_control=BatchControl(self.share))


def digits_domains() -> nn.Module:
    """Two answers: seen in training, or asked about."""
    return lenet(16, 64, side=8, classes=2)


def training_digits() -> Data:
    return load_data("digits", split="train")


TRANSDUCTIVE: tuple[Kit, ...] = (
    DENTKit(),
    TENTKit(),
    RMCKit(),
    DANNKit(),
    TADVKit(),
    URejectronKit(),
)
