"""A table of all attacks, over which contract and exactness tests are parametrized.

A new attack adds one line here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.lafeat import CosineAscent
from saddlepoint.attacks.level_search import LevelSearch
from saddlepoint.attacks.losses import Loss, cross_entropy, dlr, margin, probability_margin
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.square import Square
from saddlepoint.attacks.vmi import VMI

INF = math.inf


@dataclass(frozen=True)
class Entry:
    """An attack at a small budget for contract tests, and what the tests may expect of it."""

    name: str
    attack: Attack[Any]
    norms: tuple[float, ...] = (INF, 2, 1)
    loss: Loss = margin
    images: bool = False  # only [N, C, H, W] inputs
    coupled: bool = True  # it works on a defense with coupled rows
    deterministic: bool = False  # another seed gives the same points
    passes: bool = True  # it uses exactly `calls` forward passes; else at most
    # The budget at which it solves a linear problem; None: it need not.
    exact: Attack[Any] | None = None
    # For p = 1 with an active box, its largest gap in units of radius x max |w|; None: not tested.
    knapsack: float | None = None


# L2: a step adds 0.3 along the gradient, and the projection scales the rest by r / (r + 0.3), or
# less where the box is active. L1: every step increases one coordinate and shrinks the others.
# Linf: any step of two radii ends in a corner.
PGD_LONG = PGD(steps=100, step_size=0.3)
APGD_LONG = APGD(steps=100)
# The shortest step of APGD for p = 1 is a tenth of the radius, moved from the full coordinates to
# the next one. Measured gaps are below 0.012 over 40 problems.
KNAPSACK = 0.02

ROSTER = (
    Entry("pgd", PGD(steps=5), exact=PGD_LONG),
    Entry(
        "pgd without random start",
        PGD(steps=5, random_start=False),
        deterministic=True,
        exact=PGD_LONG,
    ),
    Entry(
        "pgd with momentum",
        PGD(steps=5, momentum=0.9),
        exact=PGD(steps=200, step_size=0.3, momentum=0.9),
    ),
    Entry("fgsm", FGSM(), deterministic=True),
    Entry("apgd, margin", APGD(steps=10), exact=APGD_LONG, knapsack=KNAPSACK),
    Entry(
        "apgd, cross-entropy",
        APGD(steps=10),
        loss=cross_entropy,
        exact=APGD_LONG,
        knapsack=KNAPSACK,
    ),
    Entry("apgd, dlr", APGD(steps=10), loss=dlr),
    Entry(
        "apgd, probability margin",
        APGD(steps=10),
        loss=probability_margin,
        exact=APGD_LONG,
        knapsack=KNAPSACK,
    ),
    Entry("cosine ascent", CosineAscent(steps=5), deterministic=True, exact=CosineAscent(steps=60)),
    Entry("vmi", VMI(steps=3, samples=2), norms=(INF, 2)),
    # For p = 1 a step moves one coordinate, and random neighbors seldom change which one.
    Entry("vmi, a coordinate at a time", VMI(steps=3, samples=2), norms=(1,), deterministic=True),
    Entry("fab", FAB(steps=4, restarts=2)),
    Entry("fab towards one class", FAB(steps=4, facet=own_facet)),
    Entry("fmn", FMN(steps=6)),
    Entry("cw", CW(steps=6, rounds=2), norms=(2,)),
    Entry("square", Square(queries=20), norms=(INF, 2), passes=False),
    Entry(
        "level search",
        LevelSearch(queries=20),
        norms=(INF,),
        coupled=False,
        deterministic=True,
        passes=False,
        exact=LevelSearch(queries=60),
    ),
    Entry(
        "level search without gradients",
        LevelSearch(queries=30, gradients=False),
        norms=(INF,),
        coupled=False,
        passes=False,
    ),
    Entry("rays", RayS(queries=30), norms=(INF,), coupled=False, deterministic=True, passes=False),
)

NORMS = {INF: "Linf", 2: "L2", 1: "L1"}


def each(entries: tuple[Entry, ...] = ROSTER) -> pytest.MarkDecorator:
    """Parametrize a test over (entry, p)."""
    cases = [
        pytest.param(entry, p, id=f"{entry.name}-{NORMS[p]}")
        for entry in entries
        for p in entry.norms
    ]
    return pytest.mark.parametrize(("entry", "p"), cases)
