"""Table 4: transductive adversarial training (TADV), which retrains with private randomness.

Beyond the paper: GMSA with several times as many source networks, and several final networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch

from saddlepoint.attacks.ensemble import AVERAGE, MinLoss
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Adversary, Direct, Episode, FixedPoints, Threat
from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
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
from saddlepoint.papers.transductive.pretrained_model_space import PretrainedModelSpace
from saddlepoint.papers.transductive.reductions import tadv_settings
from saddlepoint.papers.transductive.scales import TADVSetting
from saddlepoint.zoo.transductive import TADV, Pretrained

ATTACKS = ("AA", MAX_LOSS_POINTS, "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
COLUMNS = ("Madry, clean", "TADV, clean", "Madry, AA", *ATTACKS)


@dataclass(frozen=True)
class TADVResult:
    """Every final network under every attack.

    The final networks are those that TADV may draw. They are unknown to the attacker.
    """

    base: Base  # the network that the attacker knows
    attacked: dict[str, Episode]  # attack -> the episode in which its points were computed
    finals: dict[str, list[Episode]]  # attack -> one episode per final network
    direct: list[Episode]  # AutoAttack run directly on each final network

    def mean(self, attack: str) -> float:
        """Mean accuracy over the final networks, in percent."""
        return accuracy(self.finals[attack]).mean


def run(request: Request) -> Result:
    """Reproduce Table 4, with the spread over the final networks."""
    experiment = TransductiveExperiment.open(request)
    found = {setting.data: evaluate(experiment, setting) for setting in experiment.setting.tadv}
    rows = tuple(row(data, one) for data, one in found.items())
    first = experiment.setting.tadv[0]
    units = f"in one batch of one round, scored on {first.finals} final networks"
    title = "Accuracy and robustness, %: mean ± standard deviation over the final networks"
    table = Table(title, ("data",), COLUMNS, rows, first.images, units=units)
    spreads = [spread(setting, found[setting.data], units) for setting in experiment.setting.tadv]
    return experiment.result(
        EXPERIMENTS[3],
        [table, *spreads],
        notes=[
            note
            for setting in experiment.setting.tadv
            for note in _notes(experiment, setting, found[setting.data])
        ],
        findings=[
            finding
            for setting in experiment.setting.tadv
            for finding in findings(setting, found[setting.data])
        ],
    )


def many_sources_name(setting: TADVSetting) -> str:
    """Name of the attack with more source networks."""
    return f"GMSA-AVG, {setting.many_sources} sources"


def evaluate(experiment: TransductiveExperiment, setting: TADVSetting) -> TADVResult:
    """Run all attacks and score their points on every final network.

    Networks are numbered: sources first, then one that simulates the defender, then the final ones.

    Args:
        experiment: the experiment.
        setting: data, numbers of networks, and attack.

    Returns:
        The known network and the episodes on the final networks.
    """
    name = f"{setting.data} tadv"
    images = experiment.draw_images(setting.data, setting.images, experiment.request.seed)
    base = experiment.base(name, images, max_loss_pgd(setting.attack), 0)
    known = setting.many_sources + 1
    adversaries: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.transferred_points,
        **_model_space_attacks(experiment, setting),
    }
    finals = [experiment.net(name, known + k) for k in range(setting.finals)]
    defense = TADV(base.net, Pretrained(tuple(finals)))
    threat = Threat(base.space, rounds="one", state_visible=False)
    episodes = experiment.attack_defense(defense, adversaries, images, threat, batch=setting.images)
    transferred = [FixedPoints(attack, episode.points) for attack, episode in episodes.items()]
    scored = [
        experiment.attack_static(net, transferred, images, base.space, name) for net in finals
    ]
    return TADVResult(
        base=base,
        attacked=episodes,
        finals={attack: [one[k] for one in scored] for k, attack in enumerate(episodes)},
        direct=[
            experiment.base(name, images, max_loss_pgd(setting.attack), known + k).auto
            for k in range(setting.finals)
        ],
    )


def _model_space_attacks(
    experiment: TransductiveExperiment, setting: TADVSetting
) -> dict[str, Adversary]:
    """FPA and GMSA on the source networks, and GMSA-AVG on as many as `setting.many_sources`."""
    sources = setting.many_sources
    models = tuple(
        Plain(experiment.net(f"{setting.data} tadv", number)) for number in range(sources + 1)
    )
    direct = Direct("pgd", setting.attack, cross_entropy)
    single = tuple((k,) for k in range(setting.sources))
    growing = tuple(range(k + 1) for k in range(setting.sources))
    return {
        "FPA": PretrainedModelSpace("fpa", direct, models, single),
        "GMSA-AVG": PretrainedModelSpace("gmsa-avg", direct, models, growing),
        "GMSA-MIN": PretrainedModelSpace("gmsa-min", direct, models, growing, MinLoss()),
        many_sources_name(setting): PretrainedModelSpace(
            "gmsa-avg", direct, models, (range(sources),), AVERAGE
        ),
    }


def row(data: str, found: TADVResult) -> Row:
    """Table row of one dataset.

    Args:
        data: name of the dataset, a key of `published.TABLE_4` if the paper has this row.
        found: our result.

    Returns:
        One cell per column of `COLUMNS`, with one value per final network where TADV answers.
    """
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


def spread(setting: TADVSetting, found: TADVResult, units: str) -> Table:
    """Mean, lowest and highest accuracy over the final networks.

    The rows are attacks that transfer to a final network, and AutoAttack on that network itself.

    Args:
        setting: data and numbers of networks.
        found: our result.
        units: how the images were evaluated, in words.

    Returns:
        One row per attack.
    """
    shown = {
        name: found.finals[name] for name in ("PGD", "GMSA-AVG", many_sources_name(setting))
    } | {"AA on the final network itself": found.direct}
    rows = []
    for name, episodes in shown.items():
        cell = accuracy(episodes)
        rows.append(Row((name,), (cell, Cell((min(cell.values),)), Cell((max(cell.values),)))))
    return Table(
        f"{setting.data}: accuracy over the final networks, %",
        ("attack",),
        ("mean", "lowest", "highest"),
        tuple(rows),
        setting.images,
        units=units,
    )


def findings(setting: TADVSetting, found: TADVResult) -> list[str]:
    """Gain of TADV over the known network, with few and with more source networks.

    Args:
        setting: data and numbers of networks.
        found: our result.

    Returns:
        Three sentences.
    """
    static = accuracy([found.base.auto]).mean
    greedy = min(("GMSA-AVG", "GMSA-MIN"), key=found.mean)
    many = accuracy(found.finals[many_sources_name(setting)])
    direct = fmean(accuracy([one]).mean for one in found.direct)
    strongest = min((*ATTACKS, many_sources_name(setting)), key=found.mean)
    gain = "a gain" if found.mean(greedy) > static else "no gain"
    gains = [
        format_difference(
            torch.stack([correct_rate(one) for one in found.finals[name]]).mean(0), found.base.auto
        )
        for name in (greedy, many_sources_name(setting))
    ]
    return [
        f"{setting.data}: with {setting.sources} sources the accuracy of TADV under {greedy} is "
        f"{found.mean(greedy):.1f} %, {gain}: {gains[0]} relative to AA on the known network "
        f"({static:.1f} %); with {setting.many_sources} sources the difference is {gains[1]}.",
        f"{setting.data}: under GMSA-AVG with {setting.many_sources} sources the accuracy is "
        f"{many.mean:.1f} %, {many.mean - found.mean('GMSA-AVG'):+.1f} points relative to "
        f"{setting.sources} sources; over {setting.finals} final networks the standard deviation "
        f"is {many.std:.1f} and the range {min(many.values):.1f} to {max(many.values):.1f} %.",
        f"{setting.data}: the strongest attack is {strongest}, with {found.mean(strongest):.1f} %; "
        f"AA run directly on each final network gives {direct:.1f} % on average.",
    ]


def _notes(
    experiment: TransductiveExperiment, setting: TADVSetting, found: TADVResult
) -> list[str]:
    recipe = experiment.recipe(found.base.name)
    return [
        describe(found.base.name, found.base.net, found.base.space, recipe),
        f"{setting.data}: {setting.many_sources + 1 + setting.finals} networks of one recipe that "
        f"differ only in their random seeds: {setting.sources} are sources of the attack, the "
        "network after the last source simulates the defender, "
        f"{setting.finals} others are final networks",
        f"{setting.data}: {tadv_settings(setting, recipe)}",
        f"{setting.data}: GMSA-MIN multiplies the steps of PGD by the number of attacked networks",
    ]
