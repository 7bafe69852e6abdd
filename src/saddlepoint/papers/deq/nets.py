"""The networks of the experiments at every scale, as recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.defenses import Broyden
from saddlepoint.evaluation import Direct, FixedPoints
from saddlepoint.gradients import Detached, Implicit
from saddlepoint.papers.multi_exit.nets import Single
from saddlepoint.papers.registry import Scale
from saddlepoint.training import (
    SGD,
    Adam,
    Cosine,
    PGDTraining,
    Piecewise,
    Recipe,
    Shift,
)
from saddlepoint.zoo.deq import EquilibriumTraining, JacobianPenalty, Solved, Unrolled
from saddlepoint.zoo.multi_exit import resnet18
from saddlepoint.zoo.nets import DenseDEQNet, DigitsCNN, wrn34_10
from saddlepoint.zoo.nets.equilibrium import Equilibrium
from saddlepoint.zoo.nets.mdeq import mdeq_large, mdeq_xl

_TOLERANCE = 1e-3
_ITERATIONS = {"short": (8, 7), "18": (18, 20), "30": (30, 30), "long": (50, 50)}


def exact(net: Callable[[], Equilibrium], forward: int, backward: int) -> Solved:
    """A network for exact gradients: f/b forward and backward solver steps; z_9 of Yang et al. is f of the best state."""
    method = Broyden(steps=forward, tolerance=_TOLERANCE)
    rule = Implicit(Broyden(steps=backward, tolerance=_TOLERANCE))
    return Solved(net(), method=method, rule=rule)


def unrolled(net: Callable[[], Equilibrium], forward: int) -> Solved:
    """A network for unrolled gradients: one undamped and five damped steps after the solver, as the released code trains."""
    return Solved(
        net(),
        method=Broyden(steps=forward, tolerance=_TOLERANCE),
        after=Unrolled(6, damping=0.5),
        rule=Detached(),
    )


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """By name: `exact-short`, `exact-long` and those between, `unrolled`, `unrolled-xl`, `vanilla`, `static`, `static-xl`."""
    kit = _KITS[scale]
    solved: dict[str, Callable[[], Solved]] = {
        f"exact-{name}": partial(exact, kit.large, *steps) for name, steps in kit.iterations.items()
    }
    solved |= {
        "unrolled": partial(unrolled, kit.large, kit.unrolled),
        "unrolled-xl": partial(unrolled, kit.xl, kit.unrolled),
    }
    made = {name: replace(kit.run, name=name, net=net) for name, net in solved.items()}
    clean = EquilibriumTraining(None, kit.method.warmup, kit.method.layers, kit.method.penalty)
    made["vanilla"] = replace(
        kit.run,
        name="vanilla",
        net=partial(exact, kit.large, *kit.vanilla),
        method=clean,
        select=FixedPoints(),
    )
    for name, net in (("static", kit.static), ("static-xl", kit.static_xl)):
        made[name] = replace(
            kit.usual, name=name, net=net, method=PGDTraining(kit.method.attack or PGD(10))
        )
    return made


@dataclass(frozen=True)
class _Composer:
    """What a scale trains."""

    run: Recipe  # with the method for equilibrium networks; name and network are put in later
    method: EquilibriumTraining
    large: Callable[[], Equilibrium]
    xl: Callable[[], Equilibrium]
    usual: Recipe  # for ordinary networks
    static: Callable[[], nn.Module]
    static_xl: Callable[[], nn.Module]
    iterations: Mapping[
        str, tuple[int, int]
    ]  # forward and backward, of networks trained with exact gradients
    unrolled: int  # forward
    vanilla: tuple[int, int]


def _tiny() -> _Composer:
    method = EquilibriumTraining(
        PGD(2), warmup=12, layers=4, penalty=JacobianPenalty(probability=0.1)
    )
    run = Recipe(
        "", "digits", nn.Identity, method, Linf(0.1), 4, n=300, batch_size=21, dev_share=0.16, optimizer=Adam(1e-2),
        select=Direct("pgd-3", PGD(3), loss=cross_entropy),
    )  # fmt: skip
    large, xl = (partial(DenseDEQNet, size=size, gain=math.inf) for size in (32, 48))
    iterations = {"short": (3, 2), "long": (6, 6)}
    return _Composer(
        run, method, large, xl, run, DigitsCNN, DigitsCNN, iterations, unrolled=4, vanilla=(6, 6)
    )


def _small() -> _Composer:
    """Fully connected networks on MNIST: a gradient of the smallest multi-scale one takes more than a hundred times as long."""
    method = EquilibriumTraining(
        PGD(3, Radii(0.5)), warmup=150, penalty=JacobianPenalty(probability=0.1)
    )
    run = Recipe(
        "", "mnist", nn.Identity, method, Linf(0.1), 10, n=11_000, dev_share=1 / 11, batch_size=100, optimizer=Adam(3e-3),
        schedule=Cosine(warmup=0.05),
    )  # fmt: skip
    large, xl = (
        partial(DenseDEQNet, image=(1, 28, 28), size=size, gain=math.inf) for size in (160, 320)
    )
    static, static_xl = (partial(_dense, size) for size in (160, 320))
    return _Composer(
        run, method, large, xl, run, static, static_xl, _ITERATIONS, unrolled=8, vanilla=(18, 20)
    )


def _dense(size: int) -> nn.Module:
    """A network without feedback and as many weights as `DenseDEQNet` has."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, size),
        nn.ReLU(),
        nn.Linear(size, size),
        nn.ReLU(),
        nn.Linear(size, 10),
    )


def _paper() -> _Composer:
    """The released settings, but that epochs are chosen on a part of the training set, not on the test set.

    Ordinary networks, whose figures the paper quotes, get the usual adversarial training.
    """
    method = EquilibriumTraining(PGD(10, Radii(1 / 4)))
    run = Recipe(
        "", "cifar10", nn.Identity, method, Linf(8 / 255), 220, dev_share=0.04, batch_size=96, optimizer=Adam(1e-3),
        augment=Shift(pixels=4, mirror=True),
    )  # fmt: skip
    usual = replace(
        run,
        epochs=110,
        batch_size=128,
        optimizer=SGD(),
        schedule=Piecewise(at=(100 / 110, 105 / 110)),
    )
    static = partial(Single, resnet18)
    static_xl = partial(Single, wrn34_10)
    return _Composer(
        run,
        method,
        mdeq_large,
        mdeq_xl,
        usual,
        static,
        static_xl,
        _ITERATIONS,
        unrolled=8,
        vanilla=(18, 20),
    )


_KITS: Mapping[Scale, _Composer] = {"tiny": _tiny(), "small": _small(), "paper": _paper()}
