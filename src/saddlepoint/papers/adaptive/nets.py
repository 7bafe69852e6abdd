"""The static networks under the defenses at each scale, as training recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.multi_exit.nets import SingleExitNet
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.transductive.nets import small_cnn
from saddlepoint.training import (
    SGD,
    TRADES,
    Adam,
    Cosine,
    FastTraining,
    Method,
    PGDTraining,
    Piecewise,
    Recipe,
    Shift,
    Standard,
)
from saddlepoint.zoo.multi_exit import resnet18
from saddlepoint.zoo.nets import wrn34_10
from saddlepoint.zoo.nets.resnet import resnet

STANDARD = "standard"
PGD_AT = "PGD-AT"
TRADES_NET = "TRADES"
FAST = "fast AT"
RESNET = "ResNet-20"
ROBUST_NETS = (PGD_AT, TRADES_NET, FAST)  # in the place of the three robust models of Table 3


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """Return the training recipes of a scale by name.

    The names are `standard`, `PGD-AT`, `TRADES`, `fast AT`, `ResNet-20`, and `PGD-AT DATA` for each
    further dataset, such as `PGD-AT cifar10`.
    """
    nets = _NETWORKS[scale]
    methods: dict[str, Method] = {
        STANDARD: Standard(),
        PGD_AT: PGDTraining(nets.attack),
        TRADES_NET: TRADES(attack=nets.attack),
        FAST: FastTraining(),
    }
    by_name = {
        name: replace(nets.main, name=name, method=method) for name, method in methods.items()
    }
    by_name[STANDARD] = replace(by_name[STANDARD], select=FixedPoints())
    by_name[FAST] = replace(by_name[FAST], net=nets.smaller)
    for recipe in nets.further:
        name = _further_name(recipe)
        by_name[name] = replace(recipe, name=name, method=methods[PGD_AT])
    by_name[RESNET] = replace(nets.resnet, name=RESNET, method=Standard(), select=FixedPoints())
    return by_name


def further(scale: Scale) -> tuple[str, ...]:
    """Return the names of the adversarially trained networks on further datasets."""
    return tuple(_further_name(recipe) for recipe in _NETWORKS[scale].further)


def _further_name(recipe: Recipe) -> str:
    return f"{PGD_AT} {recipe.data}"


@dataclass(frozen=True)
class _ScaleNetworks:
    """The networks of one scale; `recipes` fills in names and training methods."""

    main: Recipe
    attack: PGD  # of adversarial training
    smaller: Callable[[], nn.Module]  # for the third model of Table 3, which is smaller there
    further: tuple[Recipe, ...]  # on further datasets
    resnet: Recipe


def _recipe(
    data: str, net: Callable[[], nn.Module], radius: float, epochs: int, **other: object
) -> Recipe:
    """Make a recipe without name and training method."""
    basis = Recipe("", data, net, Standard(), Linf(radius), epochs)
    return replace(basis, **other)  # type: ignore[arg-type]


def _tiny() -> _ScaleNetworks:
    main = _recipe(
        "digits",
        partial(small_cnn, 4, 24, side=8),
        0.1,
        5,
        n=300,
        batch_size=32,
        dev_share=0.1,
        optimizer=Adam(5e-3),
    )
    deep = replace(
        main,
        net=partial(resnet, (1, 1, 1), 4, in_channels=1, mean=(0.3,), std=(0.4,)),
        space=Linf(0.05),
    )
    return _ScaleNetworks(
        main=main,
        attack=PGD(2),
        smaller=partial(small_cnn, 2, 16, side=8),
        further=(main,),
        resnet=deep,
    )


def _small() -> _ScaleNetworks:
    """Small networks with batch norm.

    Without batch norm, adversarial training of networks of this size stays at chance accuracy.
    """
    mnist = _recipe(
        "mnist",
        partial(small_cnn, 8, 64),
        0.2,
        8,
        n=5500,
        dev_share=1 / 11,
        batch_size=64,
        optimizer=Adam(2e-3),
        schedule=Cosine(warmup=0.05),
    )
    cifar = _recipe(
        "cifar10",
        partial(small_cnn, 16, 64, side=32, colors=3),
        8 / 255,
        8,
        n=11_000,
        dev_share=1 / 11,
        batch_size=64,
        optimizer=Adam(2e-3),
        schedule=Cosine(warmup=0.05),
        augment=Shift(pixels=4, mirror=True),
    )
    cifar100 = replace(
        cifar,
        data="cifar100",
        net=partial(small_cnn, 16, 64, side=32, colors=3, classes=100),
    )
    svhn = replace(cifar, data="svhn", space=Linf(12 / 255), augment=Shift(pixels=4))
    deep = replace(
        cifar,
        net=partial(resnet, (3, 3, 3), 16),
        space=Linf(2 / 255),
        epochs=8,
        n=None,
        dev_share=0.04,
        batch_size=128,
        optimizer=SGD(0.1),
    )
    return _ScaleNetworks(
        main=mnist,
        attack=PGD(3, Radii(0.5)),
        smaller=partial(small_cnn, 4, 32),
        further=(cifar, cifar100, svhn),
        resnet=deep,
    )


def _paper() -> _ScaleNetworks:
    """Networks and data of the paper's size, trained here.

    The paper used released weights, a different network for each defense.
    """
    cifar10 = _recipe(
        "cifar10",
        partial(SingleExitNet, wrn34_10),
        8 / 255,
        110,
        dev_share=0.04,
        schedule=Piecewise(at=(100 / 110, 105 / 110)),
        augment=Shift(pixels=4, mirror=True),
    )
    cifar100 = replace(
        cifar10, data="cifar100", net=partial(SingleExitNet, partial(wrn34_10, classes=100))
    )
    svhn = replace(
        cifar10,
        data="svhn",
        space=Linf(12 / 255),
        optimizer=SGD(rate=0.01),
        augment=Shift(pixels=4),
    )
    deep = replace(
        cifar10,
        net=partial(resnet, (3, 3, 3), 16),
        space=Linf(2 / 255),
        epochs=300,
        schedule=Piecewise(at=(150 / 300, 250 / 300)),
    )
    return _ScaleNetworks(
        main=cifar10,
        attack=PGD(10, Radii(1 / 4)),
        smaller=partial(SingleExitNet, resnet18),
        further=(cifar100, svhn),
        resnet=deep,
    )


_NETWORKS: Mapping[Scale, _ScaleNetworks] = {
    "tiny": _tiny(),
    "small": _small(),
    "paper": _paper(),
}
