"""The training recipes of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from saddlepoint.attacks.aims import loss_of_mean
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf
from saddlepoint.evaluation import FixedPoints
from saddlepoint.training.exits import OverExits
from saddlepoint.training.method import (
    FAT,
    MART,
    TRADES,
    FastTraining,
    HalfAdversarial,
    PGDTraining,
    Standard,
)
from saddlepoint.training.recipe import SGD, Adam, Cosine, Recipe, Shift, judge
from saddlepoint.zoo.deq import (
    EquilibriumTraining,
    JacobianPenalty,
    digits_deq_exact,
    digits_deq_unrolled,
)
from saddlepoint.zoo.nets import DigitsCNN
from saddlepoint.zoo.nets.dann import digits_two_heads
from saddlepoint.zoo.nets.digits import digits_small
from saddlepoint.zoo.nets.lenet import digits_lenet
from saddlepoint.zoo.nets.resnet import cifar_exits, digits_exits, digits_resnet

_DIGITS = Recipe(
    name="digits-pgd",
    data="digits",
    net=DigitsCNN,
    method=PGDTraining(),
    space=Linf(0.15),  # pixels are multiples of 1/16: the radius is about two and a half levels
    epochs=40,
    batch_size=64,
    optimizer=SGD(rate=0.05),
    schedule=Cosine(warmup=0.05),
    dev_share=0.2,
)

_CIFAR_EXITS = Recipe(
    name="cifar-exits",
    data="cifar10",
    net=cifar_exits,
    method=OverExits(PGDTraining(PGD(steps=5))),
    space=Linf(8 / 255),
    epochs=10,
    n=10_000,
    measured_on=500,
    optimizer=SGD(rate=0.1),
    schedule=Cosine(warmup=0.05),
    augment=Shift(pixels=4, mirror=True),
    select=judge(loss_of_mean),
    dev_share=0.05,
)

_DIGITS_DEQ = replace(
    _DIGITS,
    name="digits-deq-exact",
    net=digits_deq_exact,
    # An epoch has 17 steps. A tenth of the steps is penalized, five times the share of the released
    # code, because the training is much shorter.
    method=EquilibriumTraining(
        PGD(steps=5), warmup=8 * 17, penalty=JacobianPenalty(probability=0.1)
    ),
    optimizer=Adam(rate=3e-3),
)

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        replace(_DIGITS, name="digits-standard", method=Standard(), select=FixedPoints()),
        _DIGITS,
        replace(_DIGITS, name="digits-trades", method=TRADES()),
        replace(_DIGITS, name="digits-mart", method=MART()),
        replace(_DIGITS, name="digits-fat", method=FAT()),
        replace(_DIGITS, name="digits-fast", method=FastTraining()),
        replace(
            _DIGITS,
            name="digits-exits",
            net=digits_exits,
            method=OverExits(PGDTraining()),
            select=judge(loss_of_mean),
        ),
        # The networks of the transductive defenses: one with batch norm, one that trains in
        # seconds, and one with two heads.
        replace(_DIGITS, name="digits-resnet", net=digits_resnet),
        replace(
            _DIGITS,
            name="digits-resnet-standard",
            net=digits_resnet,
            method=Standard(),
            select=FixedPoints(),
        ),
        replace(
            _DIGITS,
            name="digits-lenet",
            net=digits_lenet,
            method=HalfAdversarial(),
            epochs=15,
            optimizer=Adam(3e-3),
        ),
        replace(
            _DIGITS,
            name="digits-two-heads",
            net=digits_two_heads,
            method=Standard(),
            select=FixedPoints(),
        ),
        # The network inside the defenses of `saddlepoint demo`.
        replace(
            _DIGITS,
            name="digits-small-standard",
            net=digits_small,
            method=Standard(),
            select=FixedPoints(),
            optimizer=Adam(1e-2),
        ),
        _CIFAR_EXITS,
        replace(
            _DIGITS_DEQ,
            name="digits-deq-standard",
            method=EquilibriumTraining(
                None, warmup=8 * 17, penalty=JacobianPenalty(probability=0.1)
            ),
            select=FixedPoints(),
        ),
        replace(_DIGITS_DEQ, name="digits-deq-unrolled", net=digits_deq_unrolled),
        _DIGITS_DEQ,
    )
}


def recipe(name: str, *, beside: Sequence[str] = ()) -> Recipe:
    """Return the recipe of this name.

    Args:
        name: One of `RECIPES`.
        beside: Other names that the error message lists and suggests.

    Raises:
        ValueError: There is no recipe of this name. The message names the nearest one.
    """
    known = [*RECIPES, *beside]
    if name not in RECIPES:
        near = get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
        advice = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no recipe is called {name!r}.{advice} Known: {', '.join(known)}.")
    return RECIPES[name]
