"""Table 4: networks trained adversarially with coins that nobody knows; then three times as many sources, and other draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from saddlepoint.attacks.ensemble import AVERAGE, MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Adversary, Direct, Episode, FixedPoints, Threat
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import (
    MOVED,
    Base,
    Lab,
    about,
    accuracy,
    apart,
    climbing,
    right,
)
from saddlepoint.papers.transductive.fixed_points import Given
from saddlepoint.papers.transductive.scales import Fresh
from saddlepoint.zoo.transductive import TADV, Pretrained

ATTACKS = ("AA", MOVED, "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
COLUMNS = ("Madry, clean", "TADV, clean", "Madry, AA", *ATTACKS)


@dataclass(frozen=True)
class Drawn:
    """What every network that may answer makes of the points of each attack."""

    base: Base  # the network that the attacker knows
    finals: dict[str, list[Episode]]  # attack -> an episode per network
    alone: list[Episode]  # AutoAttack on each of these networks itself

    def mean(self, attack: str) -> float:
        return accuracy(self.finals[attack]).mean


def run(request: Request) -> Result:
    lab = Lab.open(request)
    found = {kind.data: played(lab, kind) for kind in lab.setting.tadv}
    rows = tuple(row(data, one) for data, one in found.items())
    first = lab.setting.tadv[0]
    units = f"in one batch of one round, judged by {first.finals} networks drawn afterwards"
    title = (
        "Accuracy and robustness, %: mean ± standard deviation over the networks that may answer"
    )
    table = Table(title, ("data",), COLUMNS, rows, first.images, units=units)
    spreads = [spread(kind, found[kind.data], units) for kind in lab.setting.tadv]
    return lab.result(
        EXPERIMENTS[3],
        [table, *spreads],
        notes=[note for kind in lab.setting.tadv for note in _notes(lab, kind, found[kind.data])],
        findings=[told for kind in lab.setting.tadv for told in findings(kind, found[kind.data])],
    )


def more(kind: Fresh) -> str:
    return f"GMSA-AVG, {kind.more * kind.sources} sources"


def played(lab: Lab, kind: Fresh) -> Drawn:
    name = f"{kind.data} tadv"
    images = lab.drawn(kind.data, kind.images, lab.request.seed)
    base = lab.base(name, images, climbing(kind.attack), 0)
    known = kind.more * kind.sources + 1
    models = tuple(Plain(lab.net(name, number)) for number in range(known))
    direct = Direct("pgd", kind.attack, cross_entropy)
    each = range(kind.sources)
    growing = _growing(kind.sources)
    sent: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.handed,
        "FPA": Given("fpa", direct, models, tuple((k,) for k in each)),
        "GMSA-AVG": Given("gmsa-avg", direct, models, growing),
        "GMSA-MIN": Given("gmsa-min", direct, models, growing, MinLoss()),
        more(kind): Given("gmsa-avg", direct, models, (range(known - 1),), AVERAGE),
    }
    nets = [lab.net(name, known + k) for k in range(kind.finals)]
    defense = TADV(base.net, Pretrained(tuple(nets)))
    threat = Threat(base.space, rounds="one", state_visible=False)
    points = {
        attack: e.points
        for attack, e in lab.against(defense, sent, images, threat, batch=kind.images).items()
    }
    found = [
        lab.on(
            net,
            [FixedPoints(attack, sent_) for attack, sent_ in points.items()],
            images,
            base.space,
            name,
        )
        for net in nets
    ]
    alone = [
        lab.base(name, images, climbing(kind.attack), known + k).auto for k in range(kind.finals)
    ]
    return Drawn(
        base, {attack: [one[k] for one in found] for k, attack in enumerate(points)}, alone
    )


def row(data: str, found: Drawn) -> Row:
    known = published.TABLE_4.get(data)
    papers = [None] * len(COLUMNS) if known is None else [*known[:4], None, *known[4:]]
    ours = [
        [found.base.clean],
        found.finals["clean"],
        [found.base.auto],
        *(found.finals[name] for name in ATTACKS),
    ]
    return Row(
        (data,),
        tuple(accuracy(episodes, paper) for episodes, paper in zip(ours, papers, strict=True)),
    )


def spread(kind: Fresh, found: Drawn, units: str) -> Table:
    """The least and the most that is left, by the network that happens to be drawn; and each of them attacked itself."""
    shown = {name: found.finals[name] for name in ("PGD", "GMSA-AVG", more(kind))} | {
        "AA on that very network": found.alone
    }
    rows = []
    for name, episodes in shown.items():
        cell = accuracy(episodes)
        rows.append(Row((name,), (cell, Cell((min(cell.values),)), Cell((max(cell.values),)))))
    columns = ("all draws", "least", "most")
    return Table(
        f"{kind.data}: by the network that is drawn, %",
        ("attack",),
        columns,
        tuple(rows),
        kind.images,
        units=units,
    )


def findings(kind: Fresh, found: Drawn) -> list[str]:
    """Is there a gain over the known network, and how much of it do more sources take?"""
    static = accuracy([found.base.auto]).mean
    few = min(("GMSA-AVG", "GMSA-MIN"), key=found.mean)
    many = accuracy(found.finals[more(kind)])
    alone = fmean(accuracy([one]).mean for one in found.alone)
    strongest = min((*ATTACKS, more(kind)), key=found.mean)
    kept = "keeps a gain" if found.mean(few) > static else "keeps no gain, against the paper,"
    gains = [
        apart(torch.stack([right(one) for one in found.finals[name]]).mean(0), found.base.auto)
        for name in (few, more(kind))
    ]
    return [
        f"{kind.data}: with {kind.sources} sources {few} leaves {found.mean(few):.1f} %: TADV {kept} of {gains[0]} over AA on the "
        f"known network ({static:.1f} %); with {kind.more * kind.sources} sources it is {gains[1]}.",
        f"{kind.data}: with {kind.more * kind.sources} sources GMSA-AVG leaves {many.mean:.1f} %, "
        f"{many.mean - found.mean('GMSA-AVG'):+.1f} points from GMSA-AVG with {kind.sources}; over {kind.finals} final draws the "
        f"standard deviation is {many.std:.1f} and the range {min(many.values):.1f} to {max(many.values):.1f} %.",
        f"{kind.data}: the strongest of all is {strongest}, {found.mean(strongest):.1f} %; AA on each of these networks itself "
        f"leaves {alone:.1f} % on average.",
    ]


def _growing(count: int) -> tuple[Sequence[int], ...]:
    return tuple(range(k + 1) for k in range(count))


def _notes(lab: Lab, kind: Fresh, found: Drawn) -> list[str]:
    recipe = lab.recipe(found.base.name)
    return [
        about(found.base.name, found.base.net, found.base.space, recipe),
        f"{kind.data}: {kind.more * kind.sources + 1 + kind.finals} networks of one recipe, {recipe.epochs} epochs each, differ by "
        f"their coins alone: {kind.sources} are sources, the next rehearses the defender, {kind.finals} others may answer",
        f"{kind.data}: PGD with {kind.attack.steps} steps, as many times more for GMSA-MIN as it attacks networks",
    ]
