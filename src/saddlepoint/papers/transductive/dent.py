"""DENT on batches in natural order or sorted by label; shared by Tables 2 and 5."""

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
from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.result import Cell, Row, Table
from saddlepoint.papers.transductive.adapt_in_forward import AdaptInForward
from saddlepoint.papers.transductive.experiment import (
    MAX_LOSS_POINTS,
    Base,
    TransductiveExperiment,
    accuracy,
    describe,
)
from saddlepoint.zoo.transductive import DENT

ON_MODULE = "DENT-AA"
END_TO_END = "end-to-end PGD (ours)"
GREEDY: Mapping[str, LossWeighting] = {"GMSA-AVG": AverageLoss(), "GMSA-MIN": MinLoss()}
ATTACKS = ("AA", MAX_LOSS_POINTS, "PGD", "FPA", *GREEDY, END_TO_END)


@dataclass(frozen=True)
class DENTResult:
    """A base network, and DENT on it under every attack."""

    base: Base
    episodes: dict[str, Episode]  # of DENT, by attack

    def gain(self, attack: str) -> float:
        """DENT under this attack minus the static network under AutoAttack, in points."""
        return 100 * float(
            correct_rate(self.episodes[attack]).mean() - correct_rate(self.base.auto).mean()
        )


def evaluate(experiment: TransductiveExperiment, base: str, *, by_label: bool) -> DENTResult:
    """Run all attacks on DENT.

    Args:
        experiment: the experiment.
        base: name of the recipe of the base network.
        by_label: sort the images by label within windows. The attack DENT-AA is then omitted, as
            in the paper.

    Returns:
        The base network and one episode per attack.
    """
    setting = experiment.setting.dent
    recipe = experiment.recipe(base)
    images = experiment.draw_images(recipe.data, setting.images, experiment.request.seed)
    static = experiment.base(recipe.name, images, setting.portfolio)
    defense = DENT(static.net)
    order = SortedByLabel(setting.window) if by_label else NaturalOrder()
    threat = Threat(static.space, state_visible=False, order=order)
    greedy = {
        name: GreedyModelSpace(name.lower(), setting.portfolio, setting.rounds, weighting)
        for name, weighting in GREEDY.items()
    }
    adversaries: dict[str, Adversary] = {
        "clean": FixedPoints(),
        **({} if by_label else {ON_MODULE: on_module(experiment, defense)}),
        **static.transferred_points,
        "FPA": FixedPoint("fpa", setting.portfolio, setting.rounds),
        **greedy,
        END_TO_END: Direct("through", setting.end_to_end, saturated(margin), respond=True),
    }
    return DENTResult(
        static, experiment.attack_defense(defense, adversaries, images, threat, batch=setting.batch)
    )


def on_module(experiment: TransductiveExperiment, defense: DENT) -> Adversary:
    """AutoAttack on DENT as if it were an ordinary network.

    As in AutoAttack's own code, the clean image is returned where the attack does not succeed.

    Args:
        experiment: the experiment, which gives the budget.
        defense: the attacked DENT.

    Returns:
        A transfer attack from DENT that adapts inside the forward pass.
    """
    budget = experiment.setting.module
    attack = Cascade(
        "autoattack", autoattack(steps=budget.steps, targets=budget.targets, queries=budget.queries)
    )
    return Transfer(CleanCopies(attack), AdaptInForward(defense))


def table(
    experiment: TransductiveExperiment, found: Mapping[str, DENTResult], columns: Sequence[str]
) -> Table:
    """Accuracies, one row per base network.

    Args:
        experiment: the experiment.
        found: results by the name of the base network.
        columns: attacks on DENT, in the order of the columns.

    Returns:
        Clean accuracies, the static network under AutoAttack and PGD, and DENT under `columns`.
    """
    rows = []
    for name, one in found.items():
        episodes = (
            one.base.clean,
            one.episodes["clean"],
            one.base.auto,
            one.base.pgd,
            *(one.episodes[column] for column in columns),
        )
        rows.append(Row((name,), tuple(accuracy([episode]) for episode in episodes)))
    return Table(
        "Accuracy and robustness, %",
        ("base",),
        ("static, clean", "DENT, clean", "static, AA", "static, PGD", *columns),
        tuple(rows),
        experiment.setting.dent.images,
        units=units(experiment),
    )


def gains(
    experiment: TransductiveExperiment,
    found: Mapping[str, DENTResult],
    columns: Sequence[str],
    papers: Mapping[str, Sequence[float]],
) -> Table:
    """Gain of DENT over the static network, with the mean gain over the paper's base networks.

    Args:
        experiment: the experiment.
        found: results by the name of the base network.
        columns: attacks on DENT, in the order of the columns.
        papers: the paper's accuracies by base network: static AA first, then those of `columns`
            that the paper has.

    Returns:
        One row per base network and one row with the means.
    """
    reported = [name for name in columns if name not in (MAX_LOSS_POINTS, END_TO_END)]
    paper_means = {
        name: fmean(row[1 + k] - row[0] for row in papers.values())
        for k, name in enumerate(reported)
    }
    rows = [
        Row((base,), tuple(Cell((one.gain(name),)) for name in columns))
        for base, one in found.items()
    ]
    means = tuple(
        Cell((fmean(one.gain(name) for one in found.values()),), paper_means.get(name))
        for name in columns
    )
    return Table(
        "Points above the static network under AA (paper: mean over its seven base networks)",
        ("base",),
        tuple(columns),
        (*rows, Row(("mean",), means)),
        experiment.setting.dent.images,
        units=units(experiment),
    )


def units(experiment: TransductiveExperiment) -> str:
    """How the images are divided into batches, in words."""
    setting = experiment.setting.dent
    return f"in {math.ceil(setting.images / setting.batch)} batches of {setting.batch}"


def notes(experiment: TransductiveExperiment, found: Mapping[str, DENTResult]) -> list[str]:
    """Base networks and attack settings, in words.

    Args:
        experiment: the experiment.
        found: results by the name of the base network.

    Returns:
        One sentence per note.
    """
    setting = experiment.setting.dent
    return [
        *(
            describe(one.base.name, one.base.net, one.base.space, experiment.recipe(one.base.name))
            for one in found.values()
        ),
        f"PGD: {len(setting.portfolio.runs)} runs of {setting.steps} steps on margin losses; each "
        "image keeps the run with the highest confidence in a wrong class; FPA and GMSA use this "
        f"attack in {setting.rounds} rounds",
        f"{END_TO_END}: PGD with {setting.end_to_end.steps} steps, differentiated through all "
        "steps of the adaptation, on a margin loss that saturates",
        "DENT has the settings of the paper's tables: 6 AdaMod steps on the scale and shift of "
        "every batch norm, with the information maximization loss",
        *setting.changed,
    ]
