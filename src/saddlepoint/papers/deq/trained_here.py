"""Convolutional equilibrium networks for CIFAR-10, trained adversarially in three ways.

A fourth network has a solver that is cut off after two steps, far from an equilibrium. All start
with the same weights: those of a weight-tied stack of cells, trained on clean images, as in the
released code. Each is then trained adversarially with its own solver and its own gradient. The
recipe is far shorter than the paper's, so that one core trains all in about an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, Linf, Radii
from saddlepoint.evaluation import Direct, FixedPoints
from saddlepoint.papers.deq.conv_cell import ConvCellNet
from saddlepoint.papers.deq.nets import exact, unrolled
from saddlepoint.training import Adam, Cosine, Recipe, Shift, Standard
from saddlepoint.zoo.deq import EquilibriumTraining, JacobianPenalty, Solved, Stack
from saddlepoint.zoo.nets.equilibrium import Equilibrium

PREFIX = "conv"  # of the names of the recipes, which name folders of checkpoints
START = "start"  # name of the network with which all others start
MakeSolved = Callable[[Callable[[], Equilibrium]], Solved]


@dataclass(frozen=True)
class TrainingPlan:
    """How the networks are trained."""

    data: str = "cifar10"
    image: tuple[int, int, int] = (3, 32, 32)
    widths: tuple[int, ...] = (24, 48, 96, 96)
    space: Ball = field(default_factory=lambda: Linf(2 / 255))
    start_images: int | None = 50_000
    start_epochs: int = 6
    images: int = 4800
    epochs: int = 2
    attack: PGD = field(default_factory=lambda: PGD(2, Radii(0.75)))
    layers: int = 8  # of the stack, as in the released code
    # Networks whose names have numbers of another solver in the paper: Table 2 has 50/50 steps.
    incomparable: frozenset[str] = frozenset({"exact-long"})
    solvers: Mapping[str, MakeSolved] = field(
        default_factory=lambda: {
            "exact-short": partial(exact, forward=8, backward=7),
            "unrolled": partial(unrolled, forward=8),
            "exact-shortest": partial(exact, forward=2, backward=1),
            "exact-long": partial(exact, forward=18, backward=20),
        }
    )

    @property
    def note(self) -> str:
        """Describe the training, for the notes of a result."""
        steps = f"attacks of {self.attack.steps} steps within {self.space}"
        return (
            f"trained here by a short recipe: first the cell as a weight-tied stack of "
            f"{self.layers} layers on {self.start_images} clean images for {self.start_epochs} "
            "epochs, once for all networks; then each network with its own solver and gradient on "
            f"the first {self.images} images for {self.epochs} epochs with {steps}, "
            "without the Jacobian penalty. The paper trains for 220 epochs on 50000 "
            "images with attacks of 10 steps within Linf radius 8/255; its numbers in brackets are "
            f"those of its networks. {', '.join(sorted(self.incomparable))} has none: the paper's "
            "has other solver steps"
        )

    def cell_net(self) -> ConvCellNet:
        """Make the untrained network."""
        return ConvCellNet(image=self.image, widths=self.widths)

    def start(self) -> Recipe:
        """Return the recipe of the clean training without a solver."""
        return Recipe(
            name=f"{PREFIX} {START}",
            data=self.data,
            net=partial(self._stack),
            method=Standard(),
            space=self.space,
            epochs=self.start_epochs,
            n=self.start_images,
            optimizer=Adam(2e-3),
            schedule=Cosine(warmup=0.1),
            augment=Shift(pixels=4, mirror=True),
            select=FixedPoints(),
            dev_share=0.02,
        )

    def recipe(self, name: str, start: nn.Module) -> Recipe:
        """Return the recipe of the adversarial training of one network.

        Args:
            name: a key of `solvers`.
            start: the trained network of `start`.
        """
        return Recipe(
            name=f"{PREFIX} {name}",
            data=self.data,
            net=partial(self.solvers[name], partial(self._loaded, start)),
            method=EquilibriumTraining(
                self.attack, warmup=0, penalty=JacobianPenalty(probability=0)
            ),
            space=self.space,
            epochs=self.epochs,
            n=self.images,
            batch_size=48,
            optimizer=Adam(1e-3),
            schedule=Cosine(warmup=0.05),
            augment=Shift(pixels=4, mirror=True),
            select=Direct("pgd-5", PGD(5), loss=cross_entropy),
            dev_share=1 / 32,
        )

    def _stack(self) -> Stack:
        return Stack(self.cell_net(), self.layers)

    def _loaded(self, start: nn.Module) -> ConvCellNet:
        net = self.cell_net()
        assert isinstance(start, Stack)
        assert isinstance(start.net, ConvCellNet)
        net.load_state_dict(start.net.state_dict())
        return net
