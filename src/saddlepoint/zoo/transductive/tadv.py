"""Transductive adversarial training: whatever was asked, train another network with coins nobody has seen, and let it answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.training.descent import initialized
from saddlepoint.training.fit import fit
from saddlepoint.training.method import HalfAdversarial
from saddlepoint.training.recipe import Adam, Nesterov, Piecewise, Recipe, Shift
from saddlepoint.zoo.nets.lenet import lenet
from saddlepoint.zoo.nets.resnet import resnet

Retrain = Callable[[int], nn.Module]  # a seed -> a network, in eval mode


@dataclass(frozen=True, eq=False)
class Trainer:
    """The recipe run from initial weights that the seed draws; the last few networks are remembered by their seeds.

    The epoch that is kept is the most robust on a part of the training set; the released code keeps the last one.
    """

    recipe: Recipe
    x: Tensor
    y: Tensor

    def __call__(self, seed: int) -> nn.Module:
        return _trained(self, seed)


@lru_cache(maxsize=16)
def _trained(trainer: Trainer, seed: int) -> nn.Module:
    """A referee tosses the same coins for every attack, and an attacker for every rehearsal."""
    with torch.enable_grad():
        return fit(
            initialized(trainer.recipe.net, seed), trainer.x, trainer.y, trainer.recipe, seed=seed
        ).net


@dataclass(frozen=True)
class Pretrained:
    """One of these networks, drawn by the seed: independent runs of the same training, made beforehand.

    A pool that attacker and defender share lets the attacker meet the very network that will answer, by luck. `divided` makes two.
    """

    nets: tuple[nn.Module, ...]

    def __post_init__(self) -> None:
        if not self.nets:
            raise ValueError("a pool of pre-trained networks needs at least one, got none.")

    def __call__(self, seed: int) -> nn.Module:
        return self.nets[seed % len(self.nets)]

    def divided(self, known: int) -> tuple[Pretrained, Pretrained]:
        """The first `known` for the attacker to rehearse with, the others for the defender: no network is in both."""
        if not 0 < known < len(self.nets):
            raise ValueError(
                f"both sides need a network of {len(self.nets)}, so the attacker may have 1 to {len(self.nets) - 1}."
            )
        return Pretrained(self.nets[:known]), Pretrained(self.nets[known:])


class TADV(Defense):
    """Answers with an adversarially trained network that is drawn after the attacker's move: Gamma(U') = F_r, r fresh coins.

    Nothing is learned from the test images; all the defense there is lies in the attacker not knowing r (Chen et al. 2022, Sec. 6).
    Before it has adapted it shows `base`, the network that the attacker may know. In the paper a dozen networks are trained
    beforehand, eleven for the attacker and the last for the defender: `Transfer(attack, TADV(base, theirs))` is sent against
    `TADV(base, ours)`, where `theirs, ours = Pretrained(nets).divided(11)`.
    """

    random = True
    memory = "batch"

    def __init__(self, base: nn.Module, retrain: Retrain) -> None:
        self.base = base
        self.retrain = retrain
        self.static = base

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        return Plain(self.retrain(ctx.shared_seed()))

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.base(x)),))


def wide_resnet20() -> nn.Module:
    """Three stages of three blocks, 64, 128 and 256 channels wide: what the released code calls ResNet-20."""
    return resnet((3, 3, 3), 64)


def mnist_recipe() -> Recipe:
    """LeNet, Linf 0.3, PGD-40 with steps of 0.01, 100 epochs of Adam (Chen et al. 2022, A.5.1)."""
    return Recipe(
        name="tadv-mnist",
        data="mnist",
        net=lenet,
        method=HalfAdversarial(PGD(steps=40, step_size=0.01)),
        space=Linf(0.3),
        epochs=100,
        optimizer=Adam(1e-3),
        schedule=Piecewise(at=()),
    )


def cifar_recipe() -> Recipe:
    """ResNet-20, Linf 8/255, PGD-10 with steps of 2/255, 110 epochs of SGD that drop at 100 and 105 (Chen et al. 2022, A.5.2).

    The momentum is Nesterov's, as the paper says; the released code has the ordinary one.
    """
    return Recipe(
        name="tadv-cifar",
        data="cifar10",
        net=wide_resnet20,
        method=HalfAdversarial(PGD(steps=10, step_size=2 / 255)),
        space=Linf(8 / 255),
        epochs=110,
        optimizer=Nesterov(rate=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Piecewise(at=(100 / 110, 105 / 110)),
        augment=Shift(4, mirror=True),
    )
