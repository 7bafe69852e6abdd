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
from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.experiment import (
    MAX_LOSS_POINTS,
    Base,
    TransductiveExperiment,
    accuracy,
    describe,
    format_difference,
    max_loss_pgd,
)
from saddlepoint.papers.transductive.reductions import dann_settings
from saddlepoint.papers.transductive.scales import DANNSetting
from saddlepoint.zoo.transductive import DANN

ATTACKS = ("AA", MAX_LOSS_POINTS, "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
COLUMNS = ("Standard, clean", "Madry, clean", "DANN, clean", "Standard, AA", "Madry, AA", *ATTACKS)


@dataclass(frozen=True)
class DANNResult:
    """DANN on one set of test images, and two static networks on the same images."""

    base: Base  # the base network of DANN, with standard training
    madry: Base  # an adversarially trained network, for comparison
    episodes: dict[str, Episode]  # of DANN, by attack


def run(request: Request) -> Result:
    """Reproduce Table 3."""
    experiment = TransductiveExperiment.open(request)
    found = {setting.data: evaluate(experiment, setting) for setting in experiment.setting.dann}
    rows = tuple(row(data, one) for data, one in found.items())
    table = Table(
        "Accuracy and robustness, %",
        ("data",),
        COLUMNS,
        rows,
        experiment.setting.dann[0].images,
        units="in one batch of one round",
    )
    notes = [
        note
        for setting in experiment.setting.dann
        for note in _notes(experiment, setting, found[setting.data])
    ]
    return experiment.result(
        EXPERIMENTS[2],
        [table],
        notes=notes,
        findings=[finding for data, one in found.items() for finding in findings(data, one)],
    )


def evaluate(experiment: TransductiveExperiment, setting: DANNSetting) -> DANNResult:
    """Run all attacks on DANN.

    Args:
        experiment: the experiment.
        setting: data, training and attack settings.

    Returns:
        The static networks and one episode per attack on DANN.
    """
    images = experiment.draw_images(setting.data, setting.images, experiment.request.seed)
    base, madry = (
        experiment.base(f"{setting.data} {name}", images, max_loss_pgd(setting.attack))
        for name in ("dann", "madry")
    )
    labeled = experiment.training_images(setting.data, setting.labeled)
    direct = Direct("pgd", setting.attack, cross_entropy)
    adversaries: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.transferred_points,
        "FPA": FixedPoint("fpa", direct, setting.rounds),
        "GMSA-AVG": GreedyModelSpace("gmsa-avg", direct, setting.rounds),
        "GMSA-MIN": GreedyModelSpace("gmsa-min", direct, setting.rounds, MinLoss()),
    }
    defense = DANN(base.net, labeled.x, labeled.y, training=setting.training)
    threat = Threat(base.space, rounds="one", state_visible=False)
    episodes = experiment.attack_defense(defense, adversaries, images, threat, batch=setting.images)
    return DANNResult(base, madry, episodes)


def row(data: str, found: DANNResult) -> Row:
    """Table row of one dataset.

    Args:
        data: name of the dataset, a key of `published.TABLE_3` if the paper has this row.
        found: our result.

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
        data: name of the dataset.
        found: our result.

    Returns:
        Three sentences.
    """
    episodes = found.episodes
    lowest = min(
        ("GMSA-AVG", "GMSA-MIN"), key=lambda name: float(correct_rate(episodes[name]).mean())
    )
    excess = ", ".join(
        f"{name} by {format_difference(episodes[name], episodes[lowest])}"
        for name in ("AA", "PGD", "FPA")
    )
    gain = format_difference(episodes["PGD"], found.base.pgd)
    return [
        f"{data}: on the PGD points of the base network, DANN minus the base network is {gain}.",
        f"{data}: compared with {lowest}, the other attacks overestimate the accuracy of DANN: "
        f"{excess}.",
        f"{data}: DANN under {lowest} minus Madry's network under AA is "
        f"{format_difference(episodes[lowest], found.madry.auto)}.",
    ]


def _notes(
    experiment: TransductiveExperiment, setting: DANNSetting, found: DANNResult
) -> list[str]:
    return [
        *(
            describe(one.name, one.net, one.space, experiment.recipe(one.name))
            for one in (found.base, found.madry)
        ),
        f"{setting.data}: DANN is trained on labeled images and on the test images; each round of "
        f"an attack retrains it; {dann_settings(setting)}",
    ]
