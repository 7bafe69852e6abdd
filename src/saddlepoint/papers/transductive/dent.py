"""DENT in batches, as they come or sorted by label: what Tables 2 and 5 share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from saddlepoint.attacks.ensemble import AverageLoss, LossWeighting, MinLoss
from saddlepoint.attacks.losses import margin, saturated
from saddlepoint.evaluation import (
    Adversary,
    Cascade,
    CleanCopies,
    Direct,
    Episode,
    FixedPoint,
    FixedPoints,
    GreedyModelSpace,
    NaturalOrder,
    SortedByLabel,
    Threat,
    Transfer,
    autoattack,
)
from saddlepoint.papers.result import Cell, Row, Table
from saddlepoint.papers.transductive.experiment import MOVED, Base, Lab, about, accuracy, right
from saddlepoint.papers.transductive.module import Module
from saddlepoint.zoo.transductive import DENT

ON_MODULE = "DENT-AA"
THROUGH = "through (ours)"
GREEDY: Mapping[str, LossWeighting] = {"GMSA-AVG": AverageLoss(), "GMSA-MIN": MinLoss()}
ATTACKS = ("AA", MOVED, "PGD", "FPA", *GREEDY, THROUGH)


@dataclass(frozen=True)
class Batched:
    """A base network, and DENT on it in batches of one order."""

    base: Base
    episodes: dict[str, Episode]  # of DENT, by attack

    def gain(self, attack: str) -> float:
        """Points that DENT has under this attack above the static network under AutoAttack."""
        return 100 * float(right(self.episodes[attack]).mean() - right(self.base.auto).mean())


def played(lab: Lab, base: str, *, by_label: bool) -> Batched:
    kind = lab.setting.dent
    recipe = lab.recipe(base)
    images = lab.drawn(recipe.data, kind.images, lab.request.seed)
    static = lab.base(recipe.name, images, kind.portfolio)
    defense = DENT(static.net)
    threat = Threat(
        static.space,
        state_visible=False,
        order=SortedByLabel(kind.window) if by_label else NaturalOrder(),
    )
    greedy = {
        name: GreedyModelSpace(name.lower(), kind.portfolio, kind.rounds, over)
        for name, over in GREEDY.items()
    }
    sent: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **({} if by_label else {ON_MODULE: on_module(lab, defense)}),
        **static.handed,
        "FPA": FixedPoint("fpa", kind.portfolio, kind.rounds),
        **greedy,
        THROUGH: Direct("through", kind.through, saturated(margin), respond=True),
    }
    return Batched(static, lab.against(defense, sent, images, threat, batch=kind.batch))


def on_module(lab: Lab, defense: DENT) -> Adversary:
    """AutoAttack on DENT as if it were a network, with the clean images that its own code returns."""
    budget = lab.setting.module
    stock = Cascade(
        "autoattack", autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries)
    )
    return Transfer(CleanCopies(stock), Module(defense))


def table(lab: Lab, found: Mapping[str, Batched], columns: Sequence[str]) -> Table:
    """A row per base: clean, the static network under AutoAttack and under PGD, and DENT under these attacks."""
    rows = [
        Row(
            (name,),
            tuple(
                accuracy([e])
                for e in (
                    one.base.clean,
                    one.episodes["clean"],
                    one.base.auto,
                    one.base.pgd,
                    *_of(one, columns),
                )
            ),
        )
        for name, one in found.items()
    ]
    heads = ("static, clean", "DENT, clean", "static, AA", "static, PGD", *columns)
    return Table(
        "Accuracy and robustness, %",
        ("base",),
        heads,
        tuple(rows),
        lab.setting.dent.images,
        units=units(lab),
    )


def gains(
    lab: Lab,
    found: Mapping[str, Batched],
    columns: Sequence[str],
    papers: Mapping[str, Sequence[float]],
) -> Table:
    """What DENT adds to the static network: the mean over the paper's seven bases stands beside ours.

    `papers` has a row per base, static AA first and then the columns that it has.
    """
    known = [name for name in columns if name not in (MOVED, THROUGH)]
    theirs = {
        name: fmean(row[1 + k] - row[0] for row in papers.values()) for k, name in enumerate(known)
    }
    rows = [
        Row((base,), tuple(Cell((one.gain(name),)) for name in columns))
        for base, one in found.items()
    ]
    means = tuple(
        Cell((fmean(one.gain(name) for one in found.values()),), theirs.get(name))
        for name in columns
    )
    title = "Points above the static network under AA (the paper's: mean of its seven bases)"
    return Table(
        title,
        ("base",),
        tuple(columns),
        (*rows, Row(("mean",), means)),
        lab.setting.dent.images,
        units=units(lab),
    )


def units(lab: Lab) -> str:
    kind = lab.setting.dent
    return f"in {math.ceil(kind.images / kind.batch)} batches of {kind.batch}"


def notes(lab: Lab, found: Mapping[str, Batched]) -> list[str]:
    kind = lab.setting.dent
    return [
        *(
            about(one.base.name, one.base.net, one.base.space, lab.recipe(one.base.name))
            for one in found.values()
        ),
        f"PGD: {len(kind.portfolio.runs)} runs of {kind.steps} steps on margins, of which each image takes the one of highest "
        f"confidence; FPA and GMSA attack so in {kind.rounds} rounds",
        f"{THROUGH}: PGD with {kind.through.steps} steps through all steps of the adaptation, on margins that count up to a bound",
        "DENT as in the paper's tables: 6 steps of AdaMod on scale and shift of every batch norm, with information maximization",
        *kind.changed,
    ]


def _of(one: Batched, columns: Sequence[str]) -> list[Episode]:
    return [one.episodes[name] for name in columns]
