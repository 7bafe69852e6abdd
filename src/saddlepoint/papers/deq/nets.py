"""The networks of the experiments at each scale, as training recipes."""

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
from saddlepoint.papers.multi_exit.nets import SingleExitNet
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
# The released code stops a solve only if its relative residual grows a thousandfold, which does not
# happen. Stopping by the absolute residual gives other gradients where 30 steps do not converge.
_solver = partial(Broyden, tolerance=_TOLERANCE, divergence=math.inf)
# Forward and backward solver steps of the networks trained with exact gradients.
ITERATIONS = {"short": (8, 7), "18": (18, 20), "30": (30, 30), "long": (50, 50)}


def exact(net: Callable[[], Equilibrium], forward: int, backward: int) -> Solved:
    """Make a network for training with exact gradients.

    The state z_9 of Yang et al. is f of the solver's best state. Its gradient is that of the
    released code, which differs from others where the backward solve does not converge.

    Args:
        net: makes the network.
        forward: solver steps of the forward pass.
        backward: solver steps of the backward pass.
    """
    rule = Implicit(_solver(steps=backward), at="following")
    return Solved(net(), method=_solver(steps=forward), rule=rule)


def unrolled(net: Callable[[], Equilibrium], forward: int) -> Solved:
    """Make a network for training with unrolled gradients.

    One undamped and five damped steps follow the solver, as in the training of the released code.

    Args:
        net: makes the network.
        forward: solver steps of the forward pass.
    """
    return Solved(
        net(),
        method=_solver(steps=forward),
        after=Unrolled(6, damping=0.5),
        rule=Detached(),
    )


def recipes(scale: Scale) -> Mapping[str, Recipe]:
    """Return the training recipes of a scale by name.

    The names are `exact-short`, `exact-long` and those between, `unrolled`, `unrolled-xl`,
    `vanilla`, `static` and `static-xl`.
    """
    nets = _NETWORKS[scale]
    solved: dict[str, Callable[[], Solved]] = {
        f"exact-{name}": partial(exact, nets.large, *steps)
        for name, steps in nets.iterations.items()
    }
    solved["unrolled"] = partial(unrolled, nets.large, nets.unrolled)
    solved["unrolled-xl"] = partial(unrolled, nets.xl, nets.unrolled)
    by_name = {name: replace(nets.equilibrium, name=name, net=net) for name, net in solved.items()}
    method = nets.method
    by_name["vanilla"] = replace(
        nets.equilibrium,
        name="vanilla",
        net=partial(exact, nets.large, *nets.vanilla),
        method=EquilibriumTraining(None, method.warmup, method.layers, method.penalty),
        select=FixedPoints(),
    )
    for name, net in (("static", nets.static), ("static-xl", nets.static_xl)):
        by_name[name] = replace(
            nets.ordinary, name=name, net=net, method=PGDTraining(method.attack or PGD(10))
        )
    return by_name


@dataclass(frozen=True)
class _ScaleNetworks:
    """The networks of one scale; `recipes` fills in names and networks."""

    equilibrium: Recipe  # trains equilibrium networks, with `method`
    method: EquilibriumTraining
    large: Callable[[], Equilibrium]
    xl: Callable[[], Equilibrium]
    ordinary: Recipe  # trains ordinary networks
    static: Callable[[], nn.Module]
    static_xl: Callable[[], nn.Module]
    iterations: Mapping[str, tuple[int, int]]  # forward and backward steps with exact gradients
    unrolled: int  # forward steps with unrolled gradients
    vanilla: tuple[int, int]  # forward and backward steps without adversarial training


def _tiny() -> _ScaleNetworks:
    method = EquilibriumTraining(
        PGD(2), warmup=12, layers=4, penalty=JacobianPenalty(probability=0.1)
    )
    recipe = Recipe(
        "",
        "digits",
        nn.Identity,
        method,
        Linf(0.1),
        4,
        n=300,
        batch_size=21,
        dev_share=0.16,
        optimizer=Adam(1e-2),
        select=Direct("pgd-3", PGD(3), loss=cross_entropy),
    )
    return _ScaleNetworks(
        equilibrium=recipe,
        method=method,
        large=partial(DenseDEQNet, size=32, gain=math.inf),
        xl=partial(DenseDEQNet, size=48, gain=math.inf),
        ordinary=recipe,
        static=DigitsCNN,
        static_xl=DigitsCNN,
        iterations={"short": (3, 2), "long": (6, 6)},
        unrolled=4,
        vanilla=(6, 6),
    )


def _small() -> _ScaleNetworks:
    """Fully connected networks on MNIST.

    A gradient of the smallest multi-scale network takes more than a hundred times as long.
    """
    method = EquilibriumTraining(
        PGD(3, Radii(0.5)), warmup=150, penalty=JacobianPenalty(probability=0.1)
    )
    recipe = Recipe(
        "",
        "mnist",
        nn.Identity,
        method,
        Linf(0.1),
        10,
        n=11_000,
        dev_share=1 / 11,
        batch_size=100,
        optimizer=Adam(3e-3),
        schedule=Cosine(warmup=0.05),
    )
    return _ScaleNetworks(
        equilibrium=recipe,
        method=method,
        large=partial(DenseDEQNet, image=(1, 28, 28), size=160, gain=math.inf),
        xl=partial(DenseDEQNet, image=(1, 28, 28), size=320, gain=math.inf),
        ordinary=recipe,
        static=partial(_dense, 160),
        static_xl=partial(_dense, 320),
        iterations=ITERATIONS,
        unrolled=8,
        vanilla=(18, 20),
    )


def _dense(size: int) -> nn.Module:
    """Make a feed-forward network with as many weights as `DenseDEQNet`."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, size),
        nn.ReLU(),
        nn.Linear(size, size),
        nn.ReLU(),
        nn.Linear(size, 10),
    )


def _paper() -> _ScaleNetworks:
    """The released settings, except that epochs are selected on a part of the training set.

    The released code selects them on the test set. The paper quotes the numbers of ordinary
    networks; here they get the usual adversarial training.
    """
    method = EquilibriumTraining(PGD(10, Radii(1 / 4)))
    recipe = Recipe(
        "",
        "cifar10",
        nn.Identity,
        method,
        Linf(8 / 255),
        220,
        dev_share=0.04,
        batch_size=96,
        optimizer=Adam(1e-3),
        augment=Shift(pixels=4, mirror=True),
    )
    ordinary = replace(
        recipe,
        epochs=110,
        batch_size=128,
        optimizer=SGD(),
        schedule=Piecewise(at=(100 / 110, 105 / 110)),
    )
    return _ScaleNetworks(
        equilibrium=recipe,
        method=method,
        large=mdeq_large,
        xl=mdeq_xl,
        ordinary=ordinary,
        static=partial(SingleExitNet, resnet18),
        static_xl=partial(SingleExitNet, wrn34_10),
        iterations=ITERATIONS,
        unrolled=8,
        vanilla=(18, 20),
    )


_NETWORKS: Mapping[Scale, _ScaleNetworks] = {
    "tiny": _tiny(),
    "small": _small(),
    "paper": _paper(),
}
