"""Table 3: domain adversarial networks, trained anew for every set of test images."""

from __future__ import annotations

from dataclasses import dataclass

from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.evaluation import (
    Adversary,
    Direct,
    Episode,
    FixedPoint,
    FixedPoints,
    GreedyModelSpace,
    Threat,
)
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
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
from saddlepoint.papers.transductive.scales import Domains
from saddlepoint.zoo.transductive import DANN

ATTACKS = ("AA", MOVED, "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
COLUMNS = ("Standard, clean", "Madry, clean", "DANN, clean", "Standard, AA", "Madry, AA", *ATTACKS)


@dataclass(frozen=True)
class Aligned:
    """DANN on one set of test images, its base, and an adversarially trained network beside them."""

    base: Base
    madry: Base
    episodes: dict[str, Episode]  # of DANN, by attack


def run(request: Request) -> Result:
    lab = Lab.open(request)
    found = {kind.data: played(lab, kind) for kind in lab.setting.dann}
    rows = tuple(row(data, one) for data, one in found.items())
    table = Table(
        "Accuracy and robustness, %",
        ("data",),
        COLUMNS,
        rows,
        lab.setting.dann[0].images,
        units="in one batch, one stream of one round",
    )
    notes = [note for kind in lab.setting.dann for note in _notes(lab, kind, found[kind.data])]
    return lab.result(
        EXPERIMENTS[2],
        [table],
        notes=notes,
        findings=[told for d, one in found.items() for told in findings(d, one)],
    )


def played(lab: Lab, kind: Domains) -> Aligned:
    images = lab.drawn(kind.data, kind.images, lab.request.seed)
    base, madry = (
        lab.base(f"{kind.data} {name}", images, climbing(kind.attack)) for name in ("dann", "madry")
    )
    labeled = lab.training(kind.data, kind.labeled)
    direct = Direct("pgd", kind.attack, cross_entropy)
    sent: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.handed,
        "FPA": FixedPoint("fpa", direct, kind.rounds),
        "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, kind.rounds),
        "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, kind.rounds, MinLoss()),
    }
    defense = DANN(base.net, labeled.x, labeled.y, training=kind.training)
    threat = Threat(base.space, rounds="one", state_visible=False)
    return Aligned(base, madry, lab.against(defense, sent, images, threat, batch=kind.images))


def row(data: str, found: Aligned) -> Row:
    known = published.TABLE_3.get(data)
    episodes = found.episodes
    static = [
        found.base.clean,
        found.madry.clean,
        episodes["clean"],
        found.base.auto,
        found.madry.auto,
    ]
    papers = [None] * len(COLUMNS) if known is None else [*known[:6], None, *known[6:]]
    ours = [*static, *(episodes[name] for name in ATTACKS)]
    return Row(
        (data,),
        tuple(accuracy([episode], paper) for episode, paper in zip(ours, papers, strict=True)),
    )


def findings(data: str, found: Aligned) -> list[str]:
    episodes = found.episodes
    lowest = min(("GMSA-AVG", "GMSA-MIN"), key=lambda name: float(right(episodes[name]).mean()))
    overrated = ", ".join(
        f"{name} by {apart(episodes[name], episodes[lowest])}" for name in ("AA", "PGD", "FPA")
    )
    gain = apart(episodes["PGD"], found.base.pgd)
    return [
        f"{data}: PGD's points from the base leave DANN {gain} from the base itself.",
        f"{data}: compared with {lowest} DANN is overrated: {overrated}.",
        f"{data}: under {lowest} DANN is {apart(episodes[lowest], found.madry.auto)} from Madry's network under AA.",
    ]


def _notes(lab: Lab, kind: Domains, found: Aligned) -> list[str]:
    training = kind.training
    return [
        *(
            about(one.name, one.net, one.space, lab.recipe(one.name))
            for one in (found.base, found.madry)
        ),
        f"{kind.data}: DANN is trained for {training.epochs} epochs of batches of {training.batch_size} on "
        f"{kind.labeled or 'all'} labeled images and on the {kind.images} test images, anew in each of {kind.rounds} rounds",
        f"{kind.data}: PGD with {kind.attack.steps} steps",
    ]
