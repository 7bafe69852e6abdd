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
from saddlepoint.papers.transductive.pretrained_model_space import PretrainedModelSpace
from saddlepoint.papers.transductive.scales import Fresh
from saddlepoint.zoo.transductive import TADV, Pretrained

ATTACKS = ("AA", MOVED, "PGD", "FPA", "GMSA-AVG", "GMSA-MIN")
COLUMNS = ("Madry, clean", "TADV, clean", "Madry, AA", *ATTACKS)


@dataclass(frozen=True)
class TADVResult:
    """Every final network under every attack.

    The final networks are those that TADV may draw. They are unknown to the attacker.
    """

    base: Base  # the network that the attacker knows
    finals: dict[str, list[Episode]]  # attack -> one episode per final network
    direct: list[Episode]  # AutoAttack run directly on each final network

    def mean(self, attack: str) -> float:
        """Mean accuracy over the final networks, in percent."""
        return accuracy(self.finals[attack]).mean


def run(request: Request) -> Result:
    """Reproduce Table 4, with the spread over the final networks."""
    lab = Lab.open(request)
    found = {kind.data: evaluate(lab, kind) for kind in lab.setting.tadv}
    rows = tuple(row(data, one) for data, one in found.items())
    first = lab.setting.tadv[0]
    units = f"in one batch of one round, scored on {first.finals} final networks"
    title = "Accuracy and robustness, %: mean ± standard deviation over the final networks"
    table = Table(title, ("data",), COLUMNS, rows, first.images, units=units)
    spreads = [spread(kind, found[kind.data], units) for kind in lab.setting.tadv]
    return lab.result(
        EXPERIMENTS[3],
        [table, *spreads],
        notes=[note for kind in lab.setting.tadv for note in _notes(lab, kind, found[kind.data])],
        findings=[
            finding for kind in lab.setting.tadv for finding in findings(kind, found[kind.data])
        ],
    )


def more(kind: Fresh) -> str:
    """Name of the attack with more source networks."""
    return f"GMSA-AVG, {kind.more * kind.sources} sources"


def evaluate(lab: Lab, kind: Fresh) -> TADVResult:
    """Run all attacks and score their points on every final network.

    Networks are numbered: sources first, then one that simulates the defender, then the final ones.

    Args:
        lab: The experiment.
        kind: Data, numbers of networks, and attack.

    Returns:
        The known network and the episodes on the final networks.
    """
    name = f"{kind.data} tadv"
    images = lab.drawn(kind.data, kind.images, lab.request.seed)
    base = lab.base(name, images, climbing(kind.attack), 0)
    known = kind.more * kind.sources + 1
    adversaries: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **base.handed,
        **_model_space_attacks(lab, kind),
    }
    finals = [lab.net(name, known + k) for k in range(kind.finals)]
    defense = TADV(base.net, Pretrained(tuple(finals)))
    threat = Threat(base.space, rounds="one", state_visible=False)
    episodes = lab.against(defense, adversaries, images, threat, batch=kind.images)
    transferred = [FixedPoints(attack, episode.points) for attack, episode in episodes.items()]
    scored = [lab.on(net, transferred, images, base.space, name) for net in finals]
    return TADVResult(
        base=base,
        finals={attack: [one[k] for one in scored] for k, attack in enumerate(episodes)},
        direct=[
            lab.base(name, images, climbing(kind.attack), known + k).auto
            for k in range(kind.finals)
        ],
    )


def _model_space_attacks(lab: Lab, kind: Fresh) -> dict[str, Adversary]:
    """FPA and GMSA on the source networks, and GMSA-AVG on `kind.more` times as many."""
    sources = kind.more * kind.sources
    models = tuple(Plain(lab.net(f"{kind.data} tadv", number)) for number in range(sources + 1))
    direct = Direct("pgd", kind.attack, cross_entropy)
    single = tuple((k,) for k in range(kind.sources))
    growing = tuple(range(k + 1) for k in range(kind.sources))
    return {
        "FPA": PretrainedModelSpace("fpa", direct, models, single),
        "GMSA-AVG": PretrainedModelSpace("gmsa-avg", direct, models, growing),
        "GMSA-MIN": PretrainedModelSpace("gmsa-min", direct, models, growing, MinLoss()),
        more(kind): PretrainedModelSpace("gmsa-avg", direct, models, (range(sources),), AVERAGE),
    }


def row(data: str, found: TADVResult) -> Row:
    """Table row of one dataset.

    Args:
        data: Name of the dataset, a key of `published.TABLE_4` if the paper has this row.
        found: Our result.

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


def spread(kind: Fresh, found: TADVResult, units: str) -> Table:
    """Mean, lowest and highest accuracy over the final networks.

    The rows are attacks that transfer to a final network, and AutoAttack on that network itself.

    Args:
        kind: Data and numbers of networks.
        found: Our result.
        units: How the images were evaluated, in words.

    Returns:
        One row per attack.
    """
    shown = {name: found.finals[name] for name in ("PGD", "GMSA-AVG", more(kind))} | {
        "AA on the final network itself": found.direct
    }
    rows = []
    for name, episodes in shown.items():
        cell = accuracy(episodes)
        rows.append(Row((name,), (cell, Cell((min(cell.values),)), Cell((max(cell.values),)))))
    return Table(
        f"{kind.data}: accuracy over the final networks, %",
        ("attack",),
        ("mean", "lowest", "highest"),
        tuple(rows),
        kind.images,
        units=units,
    )


def findings(kind: Fresh, found: TADVResult) -> list[str]:
    """Gain of TADV over the known network, with few and with more source networks.

    Args:
        kind: Data and numbers of networks.
        found: Our result.

    Returns:
        Three sentences.
    """
    static = accuracy([found.base.auto]).mean
    few = min(("GMSA-AVG", "GMSA-MIN"), key=found.mean)
    many = accuracy(found.finals[more(kind)])
    direct = fmean(accuracy([one]).mean for one in found.direct)
    strongest = min((*ATTACKS, more(kind)), key=found.mean)
    gain = (
        "a gain, as in the paper" if found.mean(few) > static else "no gain, contrary to the paper"
    )
    gains = [
        apart(torch.stack([right(one) for one in found.finals[name]]).mean(0), found.base.auto)
        for name in (few, more(kind))
    ]
    more_sources = kind.more * kind.sources
    return [
        f"{kind.data}: with {kind.sources} sources the accuracy of TADV under {few} is "
        f"{found.mean(few):.1f} %, {gain}: {gains[0]} relative to AA on the known network "
        f"({static:.1f} %); with {more_sources} sources the difference is {gains[1]}.",
        f"{kind.data}: under GMSA-AVG with {more_sources} sources the accuracy is "
        f"{many.mean:.1f} %, {many.mean - found.mean('GMSA-AVG'):+.1f} points relative to "
        f"{kind.sources} sources; over {kind.finals} final networks the standard deviation is "
        f"{many.std:.1f} and the range {min(many.values):.1f} to {max(many.values):.1f} %.",
        f"{kind.data}: the strongest attack is {strongest} with {found.mean(strongest):.1f} %; AA "
        f"run directly on each final network gives {direct:.1f} % on average.",
    ]


def _notes(lab: Lab, kind: Fresh, found: TADVResult) -> list[str]:
    recipe = lab.recipe(found.base.name)
    return [
        about(found.base.name, found.base.net, found.base.space, recipe),
        f"{kind.data}: {kind.more * kind.sources + 1 + kind.finals} networks of one recipe, "
        f"{recipe.epochs} epochs each, that differ only in their random seeds: {kind.sources} are "
        "sources of the attack, the network after the last source simulates the defender, "
        f"{kind.finals} others are final networks",
        f"{kind.data}: PGD with {kind.attack.steps} steps; GMSA-MIN multiplies them by the number "
        "of attacked networks",
    ]
