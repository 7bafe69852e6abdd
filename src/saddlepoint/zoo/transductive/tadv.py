"""TADV: classifies every batch with a network that is adversarially trained anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.training.fit import fit
from saddlepoint.training.method import HalfAdversarial
from saddlepoint.training.recipe import Adam, Nesterov, Piecewise, Recipe, Shift, initial
from saddlepoint.zoo.nets.lenet import lenet
from saddlepoint.zoo.nets.resnet import resnet

Retrain = Callable[[int], nn.Module]  # a seed -> a network, in eval mode


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains by a recipe; the seed decides the initial weights and everything else.

    The last few networks are cached by their seeds. The epoch that is kept is the most robust one
    on a part of the training set; the released code keeps the last one.
    """

    recipe: Recipe
    x: Tensor  # training images [N, ...]
    y: Tensor  # labels [N]

    def __call__(self, seed: int) -> nn.Module:
        """Return the network of this seed, in eval mode."""
        return _trained(self, seed)


@lru_cache(maxsize=16)
def _trained(trainer: Trainer, seed: int) -> nn.Module:
    """Train once per seed: a referee uses the same keys for every attack, and so do simulations."""
    with torch.enable_grad():
        net = initial(trainer.recipe, seed)
        return fit(net, trainer.x, trainer.y, trainer.recipe, seed=seed).net


@dataclass(frozen=True)
class Pretrained:
    """A pool of networks from independent runs of the same training; the seed selects one.

    If attacker and defender share a pool, the attacker may by chance simulate with the very network
    that the defender uses. `divided` splits the pool in two.

    Raises:
        ValueError: The pool is empty.
    """

    nets: tuple[nn.Module, ...]

    def __post_init__(self) -> None:
        if not self.nets:
            raise ValueError("a pool of pre-trained networks needs at least one network, got none.")

    def __call__(self, seed: int) -> nn.Module:
        """Return the network that the seed selects."""
        return self.nets[seed % len(self.nets)]

    def divided(self, known: int) -> tuple[Pretrained, Pretrained]:
        """Split the pool.

        Args:
            known: Number of networks for the attacker, at least one and not all.

        Returns:
            The first `known` networks, for the attacker's simulations, and the others, for the
            defender.

        Raises:
            ValueError: One of the parts would be empty.
        """
        if not 0 < known < len(self.nets):
            raise ValueError(
                f"attacker and defender both need a network of the {len(self.nets)}: "
                f"known must be 1 to {len(self.nets) - 1}, got {known}."
            )
        return Pretrained(self.nets[:known]), Pretrained(self.nets[known:])


class TADV(Defense):
    """Transductive adversarial training (Chen et al. 2022, Sec. 6).

    Gamma(U') = F_r with a random r. An adversarially trained network F_r is drawn after the
    attacker's move and classifies the batch. Nothing is learned from the test images. The only
    protection is that the attacker does not know r. Before it adapts, the defense is `base`, which
    the attacker may know.

    In the paper twelve networks are trained in advance, eleven for the attacker and the last one
    for the defender: run `Transfer(attack, TADV(base, theirs))` against `TADV(base, ours)`, where
    `theirs, ours = Pretrained(nets).divided(11)`.

    Args:
        base: The network before adaptation.
        retrain: Returns the network of a seed: a `Trainer` or a `Pretrained` pool.
    """

    random = True
    memory = "batch"

    def __init__(self, base: nn.Module, retrain: Retrain) -> None:
        self.base = base
        self.retrain = retrain
        self.static = base

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        """Return the network that the keys of the batch draw; x is not used."""
        return Plain(self.retrain(ctx.shared_seed()))

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output of `base`."""
        return Trace((View("final", self.base(x)),))


def wide_resnet20() -> nn.Module:
    """Return the network that the released code calls ResNet-20.

    It has three stages of three blocks, 64, 128 and 256 channels wide.
    """
    return resnet((3, 3, 3), 64)


def mnist_recipe() -> Recipe:
    """Return the recipe for MNIST (Chen et al. 2022, A.5.1).

    LeNet, Linf 0.3, PGD-40 with steps of 0.01, 100 epochs of Adam.
    """
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
    """Return the recipe for CIFAR-10 (Chen et al. 2022, A.5.2).

    ResNet-20, Linf 8/255, PGD-10 with steps of 2/255, 110 epochs of SGD with rate drops after 100
    and 105. The momentum is Nesterov's, as in the paper; the released code uses ordinary momentum.
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
