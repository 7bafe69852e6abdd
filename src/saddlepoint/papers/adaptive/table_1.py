"""Table 1: nine defenses, what they are, what they cost, and what is left under the paper's attack and under an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.attacks.rays import RayS
from saddlepoint.evaluation import Direct, Episode, FixedPoints
from saddlepoint.papers.adaptive import published
from saddlepoint.papers.adaptive.attacks import PAPER, TRANSFERS, auto, unaware
from saddlepoint.papers.adaptive.cost import cost
from saddlepoint.papers.adaptive.defenses import FITS, ON_ROBUST
from saddlepoint.papers.adaptive.experiment import FLOW, Lab, Subject, apart, right
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.adaptive import TABLE, Surveyed

KINDS = ("principle", "blocks")
COSTS = ("forward passes", "backward passes", "operations, ×", "time, ×")
PAPERS = "the paper's attack"
SUITE = "audit"
STATIC = "static, AutoAttack"
LEAST = "worst of all"
BEYOND = "the paper's less the strongest transfer"
GAIN = "worst of all less static"
COLUMNS = ("clean", "static, clean", STATIC, *TRANSFERS, PAPERS, SUITE, LEAST, BEYOND, GAIN)
NOTES = (
    "the paper's attack is an adversary of shared parts; audit: the worst points of an audit that is handed the defense and told "
    "nothing of it, answered once more",
    "transfers, attacks that know nothing of the defense: points of maximal loss on the static net, but AutoAttack's, which are "
    "clean images where it failed",
    "worst of all: an attacker who sends each image, or each batch of a defense that couples it, the strongest of everything here",
    "passes, operations and time are those of one answer in answers of the static net; passes may end at an inner layer, "
    "operations are those of all networks",
)


@dataclass(frozen=True)
class AttackResult:
    """One defense under everything."""

    about: Surveyed
    subject: Subject
    clean: Episode
    transfers: tuple[Episode, ...]
    paper: Episode
    suite: tuple[Episode, ...]
    static_clean: Episode
    static: Episode

    @property
    def robust_base(self) -> bool:
        return self.subject.base in ON_ROBUST

    @property
    def least(self) -> Tensor:
        return self.subject.worst([self.clean, *self.transfers, self.paper, *self.suite])

    @property
    def strongest(self) -> Episode:
        """Of the attacks that know nothing of the defense."""
        return min(self.transfers, key=lambda episode: float(right(episode).mean()))

    @property
    def beyond(self) -> Cell:
        return apart(right(self.paper), right(self.strongest))

    @property
    def gain(self) -> Cell:
        return apart(self.least, right(self.static), self.about.found - self.about.static)

    def row(self) -> Row:
        cells = (
            accuracy(right(self.clean)),
            accuracy(right(self.static_clean)),
            accuracy(right(self.static), self.about.static),
            *(
                accuracy(right(episode), paper)
                for episode, paper in zip(
                    self.transfers, _transferred(self.about.name), strict=True
                )
            ),
            accuracy(right(self.paper), self.about.found),
            accuracy(self.subject.worst(self.suite)) if self.suite else None,
            accuracy(self.least),
            self.beyond,
            self.gain,
        )
        labels = (
            self.about.name,
            f"{self.subject.base}, {self.subject.data}",
            str(len(self.subject.test.x)),
            self.about.attack,
        )
        return Row((*labels, f"{self.about.reported:g}"), cells)


def _transferred(name: str) -> tuple[float | None, ...]:
    """The paper's figures for transferred points, in the order of `TRANSFERS`."""
    known: dict[str, tuple[float | None, ...]] = {
        "SODEF": (None, None, published.TABLE_2["Linf"][1], None),
        "ClosedLoopControl": (None, published.CLOSED_LOOP["transfer PGD"], None, None),
        "AntiAdversary": (None, None, None, published.ANTI_ADVERSARY_TRANSFER),
        "AIDPurifier": (None, None, None, published.TABLE_4["CIFAR-10"][1]),
        "ContrastiveReversal": (
            None,
            None,
            published.CONTRASTIVE["AutoAttack"],
            published.CONTRASTIVE["APGD"],
        ),
    }
    return known.get(name, (None,) * len(TRANSFERS))


def run(request: Request) -> Result:
    lab = Lab.open(request)
    found = [attacked(lab, one) for one in TABLE]
    labels = (
        "defense",
        "static net, data",
        "images",
        "the paper's attack",
        "reported by its authors",
    )
    accuracies = Table(
        "Accuracy, %, and differences in points",
        labels,
        COLUMNS,
        tuple(one.row() for one in found),
        0,
        digits=1,
    )
    named, rays = under_rays(lab, next(one for one in found if one.about.name == "AntiAdversary"))
    return lab.result(
        "table-1",
        [accuracies, spent(lab, found), rays],
        subjects=[one.subject for one in found],
        notes=[*NOTES, _budgets(lab), FITS[request.scale].told, FLOW, *_judged(found)],
        findings=[*(told for one in found for told in findings(one)), named],
    )


def attacked(lab: Lab, about: Surveyed) -> AttackResult:
    subject = lab.subject(about.name, scored=lab.setting.images(about.name))
    spend = lab.setting.spend
    clean, *transfers = lab.play(subject, [FixedPoints(), *unaware(subject.defense, spend)])
    (paper,) = lab.play(subject, [PAPER[about.name](subject.defense, spend)])
    suite = generic(lab, subject)
    static_clean, static = lab.play_static(subject, [FixedPoints(), auto(spend)])
    return AttackResult(
        about, subject, clean, tuple(transfers), paper, tuple(suite), static_clean, static
    )


def generic(lab: Lab, subject: Subject) -> list[Episode]:
    """The worst points of an audit that is handed the defense; nothing where the scale has no time for that."""
    audit = lab.audited(subject)
    return [] if audit is None else lab.play(subject, [FixedPoints(SUITE, audit.worst_points)])


def spent(lab: Lab, found: Sequence[AttackResult]) -> Table:
    """What the defenses are, and what an answer costs."""
    rows = []
    for one in found:
        with torch_threads(lab.setting.threads):
            found_cost = cost(one.subject.defense, one.subject.test.x[: one.subject.batch])
        *counts, seconds = (Cell((value,)) for value in found_cost)
        labels = (one.about.name, one.about.paper, one.about.principle, ", ".join(one.about.blocks))
        rows.append(Row(labels, (*counts, Cell(seconds.values, float(one.about.inference)))))
    return Table(
        "One answer, in answers of the static net",
        ("defense", "paper", *KINDS),
        COSTS,
        tuple(rows),
        0,
        digits=1,
    )


def under_rays(lab: Lab, one: AttackResult) -> tuple[str, Table]:
    """The anti-adversary and its static net under the same search along rays: labels are all that it sees."""
    subject = one.subject
    queries = lab.setting.spend.rays
    (bare,) = lab.play_static(subject, [Direct("RayS", RayS(queries))])
    same = one.paper.answered[0].cpu() == bare.answered[0].cpu()
    points = (one.paper.points == bare.points).flatten(1).all(1).cpu()
    cells = (accuracy(right(one.paper), one.about.found), accuracy(right(bare), one.about.static))
    agreed = (Cell((float(same.sum()),)), Cell((float(points.sum()),)))
    columns = ("anti-adversary", "static", "labels that agree", "points that agree")
    table = Table(
        "RayS, %, and counts",
        ("queries",),
        columns,
        (Row((str(queries),), (*cells, *agreed)),),
        len(same),
        digits=1,
    )
    verdict = (
        "label for label the same"
        if same.all()
        else f"not the same on {int((~same).sum())} of {len(same)} images"
    )
    return f"Under RayS the anti-adversary and its static net are {verdict}.", table


def findings(one: AttackResult) -> list[str]:
    """Does the paper's attack end at or below every transfer, does the defense gain over its net, and who found the least?"""
    name = one.about.name
    beyond = one.beyond
    gain = one.gain
    strongest = one.strongest.adversary
    suite = (
        f"; an audit leaves {accuracy(one.subject.worst(one.suite)).mean:.1f} %"
        if one.suite
        else ""
    )
    place = "at or below" if beyond.mean <= 0 else "above"
    told = [
        f"{name}: the paper's attack leaves {accuracy(right(one.paper)).mean:.1f} %, {place} the strongest transfer ({strongest}, "
        f"{_shown(beyond)}){suite}."
    ]
    assert gain.interval is not None
    low, high = gain.interval
    base = "robust" if one.robust_base else "ordinary"
    verdict = (
        "it is more robust than its static net, beyond the interval" if low > 0
        else "it weakens its static net, beyond the interval" if high < 0
        else "no difference to its static net that these images could show"
    )  # fmt: skip
    told.append(
        f"{name} on a{'n' if base == 'ordinary' else ''} {base} net: {verdict} ({_shown(gain)})."
    )
    if one.robust_base and low > 0:
        told.append(f"Against the paper: {name} gains over a robust net.")
    return told


def _shown(cell: Cell) -> str:
    assert cell.interval is not None
    reported = f"; the paper's figures give {cell.paper:+.1f}" if cell.paper is not None else ""
    return f"{cell.mean:+.1f} points, {cell.interval[0]:+.1f} to {cell.interval[1]:+.1f}{reported}"


def _budgets(lab: Lab) -> str:
    return f"audits: the budget {lab.setting.suite}, of {', '.join(lab.setting.audited)}"


def _judged(found: Sequence[AttackResult]) -> list[str]:
    return [
        f"{one.about.name}: judged over {one.subject.draws} draws"
        for one in found
        if one.subject.defense.random
    ]
