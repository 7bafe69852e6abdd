"""Table 3: domain adversarial networks (DANN), retrained for every set of test images."""

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
class DANNResult:
    """DANN on one set of test images, and two static networks on the same images."""

    base: Base  # the base network of DANN, with standard training
    madry: Base  # an adversarially trained network, for comparison
    episodes: dict[str, Episode]  # of DANN, by attack


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    lab = Lab.open(request)
    found = {kind.data: evaluate(lab, kind) for kind in lab.setting.dann}
    rows = tuple(row(data, one) for data, one in found.items())
    table = Table(
        "Accuracy and robustness, %",
        ("data",),
        COLUMNS,
        rows,
        lab.setting.dann[0].images,
        units="in one batch of one round",
    )
    notes = [note for kind in lab.setting.dann for note in _notes(lab, kind, found[kind.data])]
    return lab.result(
        EXPERIMENTS[2],
        [table],
        notes=notes,
        findings=[finding for data, one in found.items() for finding in findings(data, one)],
    )


def evaluate(lab: Lab, kind: Domains) -> DANNResult:
    """Run all attacks on DANN.

    Args:
        lab: The experiment.
        kind: Data, training and attack settings.

    Returns:
        The static networks and one episode per attack on DANN.
    """
    images = lab.drawn(kind.data, kind.images, lab.request.seed)
    base, madry = (
        lab.base(f"{kind.data} {name}", images, climbing(kind.attack)) for name in ("dann", "madry")
    )
    labeled = lab.training(kind.data, kind.labeled)
    direct = Direct("pgd", kind.attack, cross_entropy)
    adversaries: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.handed,
        "FPA": FixedPoint("fpa", direct, kind.rounds),
        "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, kind.rounds),
        "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, kind.rounds, MinLoss()),
    }
    defense = DANN(base.net, labeled.x, labeled.y, training=kind.training)
    threat = Threat(base.space, rounds="one", state_visible=False)
    episodes = lab.against(defense, adversaries, images, threat, batch=kind.images)
    return DANNResult(base, madry, episodes)


def row(data: str, found: DANNResult) -> Row:
    """Table row of one dataset.

    Args:
        data: Name of the dataset, a key of `published.TABLE_3` if the paper has this row.
        found: Our result.

    Returns:
        One cell per column of `COLUMNS`, with the paper's number where it has one.
    """
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


def findings(data: str, found: DANNResult) -> list[str]:
    """Compare DANN with its base and with Madry's network, and the attacks with the strongest one.

    Args:
        data: Name of the dataset.
        found: Our result.

    Returns:
        Three sentences.
    """
    episodes = found.episodes
    lowest = min(("GMSA-AVG", "GMSA-MIN"), key=lambda name: float(right(episodes[name]).mean()))
    excess = ", ".join(
        f"{name} by {apart(episodes[name], episodes[lowest])}" for name in ("AA", "PGD", "FPA")
    )
    gain = apart(episodes["PGD"], found.base.pgd)
    return [
        f"{data}: on the PGD points of the base network, DANN minus the base network is {gain}.",
        f"{data}: compared with {lowest}, the other attacks overestimate the accuracy of DANN: "
        f"{excess}.",
        f"{data}: DANN under {lowest} minus Madry's network under AA is "
        f"{apart(episodes[lowest], found.madry.auto)}.",
    ]


def _notes(lab: Lab, kind: Domains, found: DANNResult) -> list[str]:
    training = kind.training
    return [
        *(
            about(one.name, one.net, one.space, lab.recipe(one.name))
            for one in (found.base, found.madry)
        ),
        f"{kind.data}: DANN is trained for {training.epochs} epochs with batches of "
        f"{training.batch_size} on {kind.labeled or 'all'} labeled images and on the {kind.images} "
        f"test images; each of the {kind.rounds} rounds of an attack retrains it",
        f"{kind.data}: PGD with {kind.attack.steps} steps",
    ]
