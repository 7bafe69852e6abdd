"""Table 1 at scale real: defenses around a robust CIFAR-10 network that others trained.

Closed-loop control and SOAP have networks of their authors: `benchmarks.released_defenses`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Linf, per_example
from saddlepoint.audits.planning.budget import BUDGETS as BUDGETS_OF_AUDITS
from saddlepoint.audits.result import Audit
from saddlepoint.data import load_data
from saddlepoint.defenses import Context, Defense, Plain
from saddlepoint.evaluation import Episode, FixedPoints, Threat
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import PAPER_ATTACKS
from saddlepoint.papers.adaptive.cost import inference_cost
from saddlepoint.papers.adaptive.defenses import DEFENSES, StaticModel
from saddlepoint.papers.adaptive.findings import compared_with_static
from saddlepoint.papers.adaptive.fitting import FITS, FitSetting
from saddlepoint.papers.adaptive.reductions import LABEL, reductions
from saddlepoint.papers.adaptive.robust_net import LAYERS, NAME, RADIUS, load_robust_net
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.third_party import ModelFolder
from saddlepoint.phrases import count
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import TABLE, Surveyed

BATCH = 64
IMAGES = 64
FEW_IMAGES = 64  # of defenses whose attack takes hours with more
AUDITED = 64  # images of an audit with the budget standard
DRAWS = 5  # of a randomized defense, as in the paper
COST_IMAGES = 16  # on which a cost is measured
COPIES = "AutoAttack's points, clean images where it failed"
POINTS = "AutoAttack's points"
PAPER_ATTACK = "the paper's attack"
AUDIT = "audit, standard"
COLUMNS = (
    "clean",
    "static, clean",
    "static, AutoAttack",
    COPIES,
    POINTS,
    PAPER_ATTACK,
    AUDIT,
    "lowest of these minus static",
)
LABELS = ("defense", "images", "audited", "attack of the paper", "verdict", LABEL)
COST_COLUMNS = ("forward passes", "backward passes", "FLOPs, ×", "time, ×")
BUDGETS = AttackBudgets(rays_queries=500)
FIT = replace(
    FITS["small"],
    images=5000,
    aid_layers=LAYERS,
    reversal=FitSetting().reversal,
    denoising=FitSetting().denoising,
)


@dataclass(frozen=True)
class Planned:
    """A defense that is measured here, and on how many images."""

    name: str
    images: int
    audited: int  # 0: the audit would take hours, its cost is a note


MEASURED = (
    Planned("SODEF", IMAGES, 0),
    Planned("AntiAdversary", IMAGES, 0),
)
NOT_RUN = ("HedgeDefense", "AIDPurifier", "ContrastiveReversal", "ATLD", "AdaptiveDenoising")


@dataclass(frozen=True)
class DefenseAttacks:
    """One defense under all attacks of this table."""

    surveyed: Surveyed
    defense: Defense
    clean: Episode
    copies: Episode
    points: Episode
    paper: Episode
    static: Tensor  # [N] whether the static network is correct under AutoAttack
    static_clean: Tensor  # [N]
    audit: Audit | None

    @property
    def lowest(self) -> Tensor:
        """Correct rate [N] at the worst of all points, audited ones included."""
        episodes = (self.clean, self.copies, self.points, self.paper)
        worst = torch.stack([correct_rate(episode) for episode in episodes]).amin(0)
        if self.audit is None:
            return worst
        audited = self.audit.correct.double().cpu()
        return torch.cat([torch.minimum(worst[: len(audited)], audited), worst[len(audited) :]])

    def row(self) -> Row:
        """Return the row of the table."""
        accuracies = (
            correct_rate(self.clean),
            self.static_clean,
            self.static,
            *(correct_rate(episode) for episode in (self.copies, self.points, self.paper)),
        )
        audited = None if self.audit is None else self.audit.correct.double().cpu()
        return Row(
            (
                self.surveyed.name,
                str(len(self.static)),
                "–" if audited is None else str(len(audited)),
                self.surveyed.attack,
                "not audited" if self.audit is None else str(self.audit.verdict),
                reductions(self.surveyed.name, FIT, BUDGETS),
            ),
            (
                *(accuracy_cell(correct) for correct in accuracies),
                None if audited is None else accuracy_cell(audited),
                difference_cell(self.lowest, self.static),
            ),
        )


def run(request: Request) -> Result:
    """Run Table 1 with the defenses that fit, and state the costs of the others."""
    runner = Runner(request, BATCH, threads=1)
    base = robust_base(runner)
    net = base.net
    test = load_data("cifar10", split="test", n=IMAGES, root=request.data)
    images = Images(test.x, test.y)
    static_clean, static = _play(
        runner, Plain(net), [FixedPoints(), AutoAttackBudget().attack("AutoAttack")], images
    )
    rows = [_measure(runner, one, base, images, static_clean, static) for one in MEASURED]
    costs = [_audit_cost(one, images) for one in rows if one.audit is None]
    costs += [f"{name} was not run: {attack_cost(name, base)}" for name in NOT_RUN]
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == "adaptive/table-1"),
        [
            Table(
                f"Accuracy, %, cifar10, {Linf(RADIUS)}",
                LABELS,
                COLUMNS,
                tuple(one.row() for one in rows),
                0,
                digits=1,
            ),
            _cost_table(rows, images),
        ],
        notes=[
            f"static network: {NAME}, adversarially trained by others at 2/255; radii and step "
            "sizes inside the defenses have the paper's ratio to this radius",
            f"{COPIES}: as its published code returns them; {POINTS}: the point of highest loss "
            "where it failed",
            str(AutoAttackBudget()),
            str(FIT),
            *costs,
        ],
        findings=[_finding(one) for one in rows],
        charts=(),
        repeats=1,
    )


def robust_base(runner: Runner) -> StaticModel:
    """Load the robust network and the images to fit defenses on; the result names its file."""
    request = runner.request
    assert request.models is not None, "checked by the request"
    folder = ModelFolder(request.models)
    runner.weights[NAME] = folder.sha256(NAME)
    net = load_robust_net(folder.weight_file(NAME))
    found = load_data("cifar10", split="train", n=FIT.images, root=request.data)
    train = Images(found.x, found.y)
    return StaticModel(net, train, Linf(RADIUS), request.seed, "cifar10", train)


def _play(
    runner: Runner, defense: Defense, adversaries: Sequence[object], images: Images
) -> list[Episode]:
    draws = DRAWS if defense.random else 1
    return runner.play(
        defense,
        adversaries,  # type: ignore[arg-type]
        images,
        threat=Threat(Linf(RADIUS), draws=draws),
        answers=None,
        name=f"{type(defense).__name__} on {NAME}",
        seed=runner.request.seed,
    )


def _measure(
    runner: Runner,
    planned: Planned,
    base: StaticModel,
    images: Images,
    static_clean: Episode,
    static: Episode,
) -> DefenseAttacks:
    """Fit a defense and run all attacks on its images."""
    runner.request.progress(f"fitting {planned.name} on {NAME}")
    defense = DEFENSES[planned.name].make(base, FIT)
    test = images.first(planned.images)
    broken = static.correct[0][: planned.images] == 0
    points = static.points[: planned.images]
    attacks = [
        FixedPoints(),
        FixedPoints(COPIES, torch.where(per_example(broken, test.x), points, test.x)),
        FixedPoints(POINTS, points),
        PAPER_ATTACKS[planned.name](defense, BUDGETS),
    ]
    clean, copies, transferred, paper = _play(runner, defense, attacks, test)
    audit = None
    if planned.audited:
        draws = DRAWS if defense.random else 1
        audit = runner.audit(
            defense,
            test.first(planned.audited),
            threat=Threat(Linf(RADIUS), draws=draws),
            budget="standard",
            name=f"{planned.name} on {NAME}",
        )
    return DefenseAttacks(
        next(one for one in TABLE if one.name == planned.name),
        defense,
        clean,
        copies,
        transferred,
        paper,
        correct_rate(static)[: planned.images],
        correct_rate(static_clean)[: planned.images],
        audit,
    )


def _cost_table(rows: Sequence[DefenseAttacks], images: Images) -> Table:
    lines = []
    for one in rows:
        *counts, seconds = inference_cost(one.defense, images.x[:BATCH])
        cells = (
            *(Cell((value,)) for value in counts),
            Cell((seconds,), float(one.surveyed.inference)),
        )
        lines.append(Row((one.surveyed.name,), cells))
    title = "Cost of one inference, relative to the static network"
    return Table(title, ("defense",), COST_COLUMNS, tuple(lines), 0, digits=1)


def _finding(one: DefenseAttacks) -> str:
    gain = difference_cell(one.lowest, one.static)
    return f"{compared_with_static(f'{one.surveyed.name} on {NAME}', gain)}."


def answer_seconds(defense: Defense, x: Tensor) -> float:
    """Measure the processor time of one answer per image."""
    started = time.process_time()
    defense.respond(x, Context(Keys.of(0, torch.arange(len(x)))))
    return (time.process_time() - started) / len(x)


def _audit_cost(one: DefenseAttacks, images: Images) -> str:
    """Say what an audit would take at the least: its first two attacks and searches by queries."""
    seconds = answer_seconds(one.defense, images.x[:COST_IMAGES])
    budget = BUDGETS_OF_AUDITS["standard"]
    draws = budget.draws if one.defense.random else 1
    steps = budget.steps + budget.targets * budget.targeted_steps + budget.queries
    hours = AUDITED * steps * draws * seconds / 3600
    return (
        f"{one.surveyed.name} was not audited: an answer takes {1000 * seconds:.1f} ms per image "
        f"of one core (measured on {count(COST_IMAGES, 'image')}), so the steps and queries of "
        f"an audit with the budget standard on {count(AUDITED, 'image')} take at least "
        f"{hours:.3g} h, without gradients and remedies"
    )


def attack_cost(name: str, base: StaticModel, networks: int = 1) -> str:
    """Fit a defense on few images, and say what the paper's attack on it would take.

    Args:
        name: name of the defense.
        base: the static network.
        networks: number of networks of this size that are attacked.
    """
    few = base.train.first(COST_IMAGES)
    short = replace(base, train=few, basis=few)
    defense = DEFENSES[name].make(short, FIT)
    seconds = answer_seconds(defense, few.x)
    attack = PAPER_ATTACKS[name](defense, AttackBudgets())
    passes = attack.cost(DRAWS if defense.random else 1)
    assert passes is not None
    hours = networks * FEW_IMAGES * passes.total * seconds / 3600
    return (
        f"an answer takes {1000 * seconds:.1f} ms per image of one core (measured on "
        f"{count(len(few.x), 'image')}), and {PAPER_ATTACK} with its published budget takes up to "
        f"{passes.total:,.0f} passes, {hours:,.3g} h for {count(FEW_IMAGES, 'image')} and "
        f"{count(networks, 'network')}, before the training of auxiliary networks"
    )
