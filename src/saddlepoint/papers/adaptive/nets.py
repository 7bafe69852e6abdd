"""The static networks under the defenses, at every scale, as recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.multi_exit.nets import Single
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.transductive.nets import normed
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
ROBUST = "PGD-AT"
TRADED = "TRADES"
FAST = "fast AT"
RESNET = "ResNet-20"
METHODS = (ROBUST, TRADED, FAST)


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """By name: `standard`, `PGD-AT`, `TRADES`, `fast AT`, `ResNet-20`, and `PGD-AT cifar10` and its like for further data."""
    kit = _KITS[scale]
    methods: dict[str, Method] = {
        STANDARD: Standard(), ROBUST: PGDTraining(kit.attack), TRADED: TRADES(attack=kit.attack), FAST: FastTraining(),
    }  # fmt: skip
    made = {name: replace(kit.run, name=name, method=method) for name, method in methods.items()}
    made[STANDARD] = replace(made[STANDARD], select=FixedPoints())
    made[FAST] = replace(made[FAST], net=kit.lesser)
    made |= {
        f"{ROBUST} {one.data}": replace(one, name=f"{ROBUST} {one.data}", method=methods[ROBUST])
        for one in kit.others
    }
    return {
        **made,
        RESNET: replace(kit.resnet, name=RESNET, method=Standard(), select=FixedPoints()),
    }


def further(scale: Scale) -> tuple[str, ...]:
    """Names of the robust nets on further data."""
    return tuple(f"{ROBUST} {one.data}" for one in _KITS[scale].others)


@dataclass(frozen=True)
class _Composer:
    """What a scale trains; names and methods are put in later."""

    run: Recipe
    attack: PGD  # of adversarial training
    lesser: Callable[[], nn.Module]  # in place of the third net of Table 3, which is smaller there
    others: tuple[Recipe, ...]
    resnet: Recipe


def _run(
    data: str, net: Callable[[], nn.Module], radius: float, epochs: int, **other: object
) -> Recipe:
    return replace(Recipe("", data, net, Standard(), Linf(radius), epochs), **other)  # type: ignore[arg-type]


def _tiny() -> _Composer:
    run = _run(
        "digits",
        partial(normed, 4, 24, side=8),
        0.1,
        5,
        n=300,
        batch_size=32,
        dev_share=0.1,
        optimizer=Adam(5e-3),
    )
    net = replace(
        run,
        net=partial(resnet, (1, 1, 1), 4, in_channels=1, mean=(0.3,), std=(0.4,)),
        space=Linf(0.05),
    )
    return _Composer(run, PGD(2), partial(normed, 2, 16, side=8), (run,), net)


def _small() -> _Composer:
    """Batch norm, without which adversarial training of nets of this size stays at chance."""
    mnist = _run(
        "mnist", partial(normed, 8, 64), 0.2, 8, n=5500, dev_share=1 / 11, batch_size=64, optimizer=Adam(2e-3),
        schedule=Cosine(warmup=0.05),
    )  # fmt: skip
    cifar = _run(
        "cifar10", partial(normed, 16, 64, side=32, colors=3), 8 / 255, 8, n=11_000, dev_share=1 / 11, batch_size=64,
        optimizer=Adam(2e-3), schedule=Cosine(warmup=0.05), augment=Shift(pixels=4, mirror=True),
    )  # fmt: skip
    deep = replace(
        cifar, net=partial(resnet, (3, 3, 3), 16), space=Linf(2 / 255), epochs=8, n=None, dev_share=0.04, batch_size=128,
        optimizer=SGD(0.1),
    )  # fmt: skip
    return _Composer(mnist, PGD(3, Radii(0.5)), partial(normed, 4, 32), (cifar,), deep)


def _paper() -> _Composer:
    """Networks and data of the paper's size, trained here: it took released weights, each defense's own."""
    run = _run(
        "cifar10", partial(Single, wrn34_10), 8 / 255, 110, dev_share=0.04, schedule=Piecewise(at=(100 / 110, 105 / 110)),
        augment=Shift(pixels=4, mirror=True),
    )  # fmt: skip
    hundred = replace(run, data="cifar100", net=partial(Single, partial(wrn34_10, classes=100)))
    signs = replace(
        run, data="svhn", space=Linf(12 / 255), optimizer=SGD(rate=0.01), augment=Shift(pixels=4)
    )
    deep = replace(
        run,
        net=partial(resnet, (3, 3, 3), 16),
        space=Linf(2 / 255),
        epochs=300,
        schedule=Piecewise(at=(150 / 300, 250 / 300)),
    )
    return _Composer(run, PGD(10, Radii(1 / 4)), partial(Single, resnet18), (hundred, signs), deep)


_KITS: Mapping[Scale, _Composer] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
