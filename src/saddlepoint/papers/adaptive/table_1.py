"""Table 1: nine defenses, their building blocks, their cost, and their robust accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.attacks.rays import RayS
from saddlepoint.evaluation import Direct, Episode, FixedPoints, Transfer
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import PAPER_ATTACKS, TRANSFERS, apgd, auto, transfers
from saddlepoint.papers.adaptive.cost import inference_cost
from saddlepoint.papers.adaptive.defenses import ROBUST_BASES
from saddlepoint.papers.adaptive.experiment import (
    SODEF_SOLVER,
    AdaptiveExperiment,
    AdaptiveSubject,
)
from saddlepoint.papers.adaptive.findings import compared_with_static, points
from saddlepoint.papers.adaptive.fitting import FITS
from saddlepoint.papers.adaptive.reductions import LABEL
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.adaptive import TABLE, Surveyed

PAPER_ATTACK = "the paper's attack"
SURROGATE = "transfer APGD from another network"
STATIC = "static, AutoAttack"
WORST_CASE = "worst case of all attacks"
BEYOND_TRANSFER = "the paper's attack minus the strongest transfer"
GAIN = "worst case minus static"
COLUMNS = (
    "clean",
    "static, clean",
    STATIC,
    *TRANSFERS,
    SURROGATE,
    PAPER_ATTACK,
    WORST_CASE,
    BEYOND_TRANSFER,
    GAIN,
)
LABELS = (
    "defense",
    "static network, data",
    "images",
    "the paper's attack",
    "reported by its authors",
    LABEL,
)
COST_COLUMNS = ("forward passes", "backward passes", "FLOPs, ×", "time, ×")
COST_LABELS = ("defense", "paper", "principle", "blocks")
NOTES = (
    "the paper's attack is composed of parts shared by all attacks; audits of these defenses are "
    "in the experiment blind-audit/adaptive",
    "transfers use only the static network: points of maximal loss, except for AutoAttack, which "
    "returns clean images where it failed",
    "from another network: points of maximal loss of an adversarially trained network on the same "
    "data (Sec. 4, first recommendation)",
    "worst case of all attacks: the strongest of all attacks here for each image, or for each "
    "batch if the defense couples the images of a batch",
    "passes, FLOPs and time of one inference are relative to one inference of the static network; "
    "a pass may end at an inner layer; FLOPs include auxiliary networks",
)


@dataclass(frozen=True)
class DefenseResult:
    """One defense under all attacks."""

    surveyed: Surveyed  # the row of the paper's table
    subject: AdaptiveSubject
    clean: Episode
    transfers: tuple[Episode, ...]  # in the order of `TRANSFERS`
    surrogate: tuple[Episode, ...]  # points of another network; empty if there is none
    paper: Episode  # under the paper's attack
    static_clean: Episode
    static: Episode  # the static network under AutoAttack
    reductions: str  # hyper-parameters below the paper's

    @property
    def robust_base(self) -> bool:
        """Whether the static network is adversarially trained."""
        return self.subject.base in ROBUST_BASES

    @property
    def worst_case(self) -> Tensor:
        """Correct rate [N] under the strongest of all attacks."""
        return self.subject.worst([self.clean, *self.transfers, *self.surrogate, self.paper])

    @property
    def strongest_transfer(self) -> Episode:
        """The strongest of the attacks that use only the static network."""
        return min(self.transfers, key=lambda episode: float(correct_rate(episode).mean()))

    @property
    def beyond_transfer(self) -> Cell:
        """Accuracy under the paper's attack minus that under the strongest transfer."""
        return difference_cell(correct_rate(self.paper), correct_rate(self.strongest_transfer))

    @property
    def gain(self) -> Cell:
        """Worst-case accuracy of the defense minus robust accuracy of the static network."""
        paper = self.surveyed.found - self.surveyed.static
        return difference_cell(self.worst_case, correct_rate(self.static), paper)

    def row(self) -> Row:
        """Return the row of the accuracy table."""
        published_transfers = _published_transfers(self.surveyed.name)
        cells = (
            accuracy_cell(correct_rate(self.clean)),
            accuracy_cell(correct_rate(self.static_clean)),
            accuracy_cell(correct_rate(self.static), self.surveyed.static),
            *(
                accuracy_cell(correct_rate(episode), paper)
                for episode, paper in zip(self.transfers, published_transfers, strict=True)
            ),
            accuracy_cell(self.subject.worst(self.surrogate)) if self.surrogate else None,
            accuracy_cell(correct_rate(self.paper), self.surveyed.found),
            accuracy_cell(self.worst_case),
            self.beyond_transfer,
            self.gain,
        )
        labels = (
            self.surveyed.name,
            f"{self.subject.base}, {self.subject.data}",
            str(len(self.subject.test.x)),
            self.surveyed.attack,
            f"{self.surveyed.reported:g}",
            self.reductions,
        )
        return Row(labels, cells)


def _published_transfers(name: str) -> tuple[float | None, ...]:
    """Return the paper's numbers for transferred points, in the order of `TRANSFERS`."""
    contrastive = published.CONTRASTIVE
    known: dict[str, tuple[float | None, ...]] = {
        "SODEF": (None, None, published.TABLE_2["Linf"][1], None),
        "ClosedLoopControl": (None, published.CLOSED_LOOP["transfer PGD"], None, None),
        "AntiAdversary": (None, None, None, published.ANTI_ADVERSARY_TRANSFER),
        "AIDPurifier": (None, None, None, published.TABLE_4["CIFAR-10"][1]),
        "ContrastiveReversal": (None, None, contrastive["AutoAttack"], contrastive["APGD"]),
    }
    return known.get(name, (None,) * len(TRANSFERS))


def run(request: Request) -> Result:
    """Reproduce Table 1."""
    experiment = AdaptiveExperiment.open(request)
    results = [attack(experiment, row) for row in TABLE]
    accuracies = Table(
        "Accuracy, %, and differences in points",
        LABELS,
        COLUMNS,
        tuple(result.row() for result in results),
        0,
        digits=1,
    )
    anti_adversary = next(one for one in results if one.surveyed.name == "AntiAdversary")
    rays_finding, rays = under_rays(experiment, anti_adversary)
    return experiment.result(
        "table-1",
        [accuracies, cost_table(experiment, results), rays],
        subjects=[result.subject for result in results],
        notes=[
            *NOTES,
            str(FITS[request.scale]),
            SODEF_SOLVER,
            *_draw_notes(results),
        ],
        findings=[*(text for result in results for text in findings(result)), rays_finding],
    )


def attack(experiment: AdaptiveExperiment, surveyed: Surveyed) -> DefenseResult:
    """Run all attacks on one defense and on its static network."""
    subject = experiment.subject(surveyed.name)
    budgets = experiment.setting.attack_budgets
    clean, *transferred = experiment.play(
        subject, [FixedPoints(), *transfers(subject.defense, budgets)]
    )
    (paper,) = experiment.play(subject, [PAPER_ATTACKS[surveyed.name](subject.defense, budgets)])
    static_clean, static = experiment.play_static(subject, [FixedPoints(), auto(budgets)])
    other = experiment.surrogate(subject)
    surrogate = experiment.play(subject, [Transfer(apgd(budgets), other)]) if other else []
    return DefenseResult(
        surveyed=surveyed,
        subject=subject,
        clean=clean,
        transfers=tuple(transferred),
        surrogate=tuple(surrogate),
        paper=paper,
        static_clean=static_clean,
        static=static,
        reductions=experiment.reductions(surveyed.name),
    )


def cost_table(experiment: AdaptiveExperiment, results: Sequence[DefenseResult]) -> Table:
    """Make the table of principles, building blocks and inference costs."""
    rows = []
    for result in results:
        subject = result.subject
        surveyed = result.surveyed
        with torch_threads(experiment.setting.threads):
            cost = inference_cost(subject.defense, subject.test.x[: subject.batch])
        *counts, seconds = cost
        cells = (*(Cell((value,)) for value in counts), Cell((seconds,), float(surveyed.inference)))
        labels = (surveyed.name, surveyed.paper, surveyed.principle, ", ".join(surveyed.blocks))
        rows.append(Row(labels, cells))
    title = "Cost of one inference, relative to the static network"
    return Table(title, COST_LABELS, COST_COLUMNS, tuple(rows), 0, digits=1)


def under_rays(experiment: AdaptiveExperiment, result: DefenseResult) -> tuple[str, Table]:
    """Compare the anti-adversary and its static network under RayS, which uses only labels.

    Returns:
        A finding and a table with both accuracies and the numbers of equal labels and points.
    """
    queries = experiment.setting.attack_budgets.rays_queries
    (static,) = experiment.play_static(result.subject, [Direct("RayS", RayS(queries))])
    equal = result.paper.answered[0].cpu() == static.answered[0].cpu()
    equal_points = (result.paper.points == static.points).flatten(1).all(1).cpu()
    cells = (
        accuracy_cell(correct_rate(result.paper), result.surveyed.found),
        accuracy_cell(correct_rate(static), result.surveyed.static),
        Cell((float(equal.sum()),)),
        Cell((float(equal_points.sum()),)),
    )
    table = Table(
        "RayS, %, and counts",
        ("queries",),
        ("anti-adversary", "static", "equal labels", "equal points"),
        (Row((str(queries),), cells),),
        len(equal),
        digits=1,
    )
    different = int((~equal).sum())
    verdict = (
        f"different labels on {different} of {len(equal)} images"
        if different
        else "the same label on every image"
    )
    return f"Under RayS the anti-adversary and its static network predict {verdict}.", table


def findings(result: DefenseResult) -> list[str]:
    """Say how the paper's attack compares with transfers, and the defense with its network."""
    name = result.surveyed.name
    beyond = result.beyond_transfer
    position = "at or below" if beyond.mean <= 0 else "above"
    texts = [
        f"{name}: the robust accuracy under the paper's attack is "
        f"{accuracy_cell(correct_rate(result.paper)).mean:.1f} %, {position} that under the "
        f"strongest transfer, {result.strongest_transfer.adversary} ({points(beyond)})."
    ]
    base = "a robust network" if result.robust_base else "an ordinary network"
    texts.append(f"{compared_with_static(f'{name} on {base}', result.gain)}.")
    assert result.gain.interval is not None
    if result.robust_base and result.gain.interval[0] > 0:
        texts.append(f"Contrary to the paper, {name} improves on a robust network.")
    return texts


def _draw_notes(results: Sequence[DefenseResult]) -> list[str]:
    return [
        f"{result.surveyed.name}: accuracy averaged over {result.subject.draws} draws"
        for result in results
        if result.subject.defense.random
    ]
