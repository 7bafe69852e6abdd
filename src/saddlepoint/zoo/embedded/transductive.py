"""Recipes of six defenses that adapt at test time, on the digits (Chen et al. 2022).

The settings are those of their papers for MNIST, or for CIFAR-10 where there are none for MNIST.
Lengths are scaled to the digits' radius. The sizes of networks and image sets are scaled to 1297
training digits.
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
    """DENT+, the evaluated variant of DENT; nothing is trained beforehand."""

    name: str = "digits-dent"
    base: str = "digits-resnet"
    kind: ClassVar[type[Defense]] = DENT

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> DENT:  # noqa: ARG002
        """Build DENT."""
        return DENT(net)


@dataclass(frozen=True)
class TENTKit(Kit):
    """TENT in its released online version: adaptations persist from batch to batch."""

    name: str = "digits-tent"
    base: str = "digits-resnet"
    kind: ClassVar[type[Defense]] = TENT

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> TENT:  # noqa: ARG002
        """Build TENT."""
        return TENT(net)


@dataclass(frozen=True)
class RMCKit(Kit):
    """RMC with the learning rate and the single attacked copy per image used for MNIST.

    The library has 2594 images, of which 128 neighbors are used instead of 1024. The attacked
    copies are computed once, by PGD with steps of a thirtieth of the radius as in the paper, and
    are stored with 256 levels. Every prediction fine-tunes a network twice; it does so for at most
    10 epochs instead of 100. The evaluation uses fixed random draws.
    """

    name: str = "digits-rmc"
    base: str = "digits-resnet"
    measured_on: int = 6
    neighbors: int = 128  # images of the library used to fine-tune the network
    tuning: Tuning = field(default_factory=lambda: Tuning(epochs=10, rate=2e-4))
    attack: PGD = field(default_factory=lambda: PGD(steps=40, step_size=0.01 / 0.3 * RADIUS))
    kind: ClassVar[type[Defense]] = RMC

    def learn(self, net: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
        """Attack the training digits."""
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
        """Build RMC with a library of clean and attacked training digits."""
        digits = training_digits()
        images = torch.cat([digits.x, weights["attacked"].to(digits.x) / 255])
        # Computed in double precision and then rounded, so that the features do not depend on the
        # number of threads.
        exact = copy.deepcopy(net).double()
        embedded = features(exact, images.double(), penultimate(exact)).to(images)
        library = Library(images, digits.y.repeat(2), embedded, len(digits))
        return RMC(net, library, neighbors=self.neighbors, tuning=self.tuning)

    def threat(self) -> Threat:
        """Return the threat model of the evaluation, with fixed random draws."""
        return Threat(Linf(self.radius), randomness="fixed")


@dataclass(frozen=True)
class DANNKit(Kit):
    """DANN, trained from scratch for every test batch as for MNIST, with half the batch size.

    The evaluation uses fixed random draws.
    """

    name: str = "digits-dann"
    base: str = "digits-two-heads"
    training: DomainTraining = field(
        default_factory=lambda: DomainTraining(build=digits_two_heads, batch_size=64)
    )
    kind: ClassVar[type[Defense]] = DANN

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> DANN:  # noqa: ARG002
        """Build DANN."""
        digits = training_digits()
        return DANN(net, digits.x, digits.y, training=self.training)

    def threat(self) -> Threat:
        """Return the threat model of the evaluation, with fixed random draws."""
        return Threat(Linf(self.radius), randomness="fixed")


@dataclass(frozen=True)
class TADVKit(Kit):
    """TADV, which trains its network anew for every batch by the recipe of its base.

    The training takes a third of the recipe's epochs and draws new randomness for every batch, so
    there is no pool of models that an attacker could know beforehand.
    """

    name: str = "digits-tadv"
    base: str = "digits-lenet"
    draws: int = 1
    rounds: int = 2
    epochs: int = 5
    kind: ClassVar[type[Defense]] = TADV

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> TADV:  # noqa: ARG002
        """Build TADV."""
        digits = training_digits()
        shorter = replace(recipe(self.base), epochs=self.epochs)
        return TADV(net, Trainer(shorter, digits.x, digits.y))


@dataclass(frozen=True)
class URejectronKit(Kit):
    """URejectron with a small discriminator.

    As in the paper, the discriminator is trained on about as many training digits as test digits,
    and half of each batch is attacked in the evaluation. If all were attacked, rejecting every
    image would count as correct.
    """

    name: str = "digits-urejectron"
    base: str = "digits-standard"
    draws: int = 2
    share: float = 0.5  # attacked fraction of a batch
    known: int = 128  # number of training digits
    training: Distinguishing = field(
        default_factory=lambda: Distinguishing(build=digits_domains, epochs=15)
    )
    kind: ClassVar[type[Defense]] = URejectron

    def defend(self, net: nn.Module, weights: Mapping[str, Tensor]) -> URejectron:  # noqa: ARG002
        """Build URejectron."""
        return URejectron(net, training_digits().x[: self.known], training=self.training)

    def threat(self) -> Threat:
        """Return the threat model of the evaluation, with part of each batch attacked."""
        return Threat(Linf(self.radius), draws=self.draws, batch_control=BatchControl(self.share))


def digits_domains() -> nn.Module:
    """Build a small network with two classes: training digits and test digits."""
    return lenet(16, 64, side=8, classes=2)


def training_digits() -> Data:
    """Load the training split of the digits."""
    return load_data("digits", split="train")


TRANSDUCTIVE: tuple[Kit, ...] = (
    DENTKit(),
    TENTKit(),
    RMCKit(),
    DANNKit(),
    TADVKit(),
    URejectronKit(),
)
