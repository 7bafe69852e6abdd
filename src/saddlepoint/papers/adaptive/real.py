"""Table 1 at scale real: defenses around a robust CIFAR-10 network that others trained.

Closed-loop control and SOAP have networks of their authors: `benchmarks.released_defenses`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Linf, per_example
from saddlepoint.audits.result import Audit
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import Adversary, Episode, FixedPoints, Threat
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import PAPER_ATTACKS
from saddlepoint.papers.adaptive.audit_costs import (
    IMAGES,
    about_answer,
    about_audit,
    audit_cost,
    fitted_on_few,
)
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
from saddlepoint.papers.result import Cell, Plot, Result, Row, Table
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.third_party import ModelFolder
from saddlepoint.phrases import count
from saddlepoint.zoo.adaptive import TABLE, AntiAdversary, Surveyed

BATCH = 64
DRAWS = 5  # of a randomized defense, as in the paper
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
LABELS = ("defense", "images", "attack of the paper", "verdict", LABEL)
COST_COLUMNS = ("forward passes", "backward passes", "FLOPs, ×", "time, ×")
BUDGETS = AttackBudgets(rays_queries=500, atld_restarts=2)
FIT = replace(
    FITS["small"],
    images=5000,
    aid_layers=LAYERS,
    # The network stays as others trained it: only the discriminator of ATLD is fitted.
    atld_training=replace(FITS["small"].atld_training, rate=0.0),
    reversal=FitSetting().reversal,
    denoising=FitSetting().denoising,
)


# Number of test images by measured defense.
MEASURED = {"SODEF": 64, "AntiAdversary": 64, "ATLD": 200, "AIDPurifier": 64, "HedgeDefense": 64}
NOT_AUDITED = ("HedgeDefense",)
NOT_RUN = ("ContrastiveReversal", "AdaptiveDenoising")


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
    audit: Audit | None  # None: not run

    @property
    def attacked(self) -> tuple[Tensor, ...]:
        """Correct rates [N] under the attacks on the defense."""
        return tuple(correct_rate(one) for one in (self.copies, self.points, self.paper))

    @property
    def audited(self) -> tuple[Tensor, ...]:
        """Whether the defense is correct [N] in the audit; empty if there is none."""
        return () if self.audit is None else (self.audit.correct.double().cpu(),)

    @property
    def lowest(self) -> Tensor:
        """Correct rate [N] at the worst of all points, clean images included."""
        return torch.stack([correct_rate(self.clean), *self.attacked, *self.audited]).amin(0)

    def row(self) -> Row:
        """Return the row of the table."""
        accuracies = (
            correct_rate(self.clean),
            self.static_clean,
            self.static,
            *self.attacked,
        )
        return Row(
            (
                self.surveyed.name,
                str(len(self.static)),
                self.surveyed.attack,
                "not audited" if self.audit is None else str(self.audit.verdict),
                reductions(self.surveyed.name, FIT, BUDGETS),
            ),
            (
                *map(accuracy_cell, accuracies),
                next(map(accuracy_cell, self.audited), None),
                difference_cell(self.lowest, self.static),
            ),
        )


def run(request: Request) -> Result:
    """Run Table 1 with the defenses that fit, and state the costs of the others."""
    runner = Runner(request, BATCH, threads=1)
    base = robust_base(runner)
    net = base.net
    test = load_data("cifar10", split="test", n=max(MEASURED.values()), root=request.data)
    images = Images(test.x, test.y)
    static_clean, static = _play(
        runner, Plain(net), [FixedPoints(), AutoAttackBudget().attack("AutoAttack")], images
    )
    rows = [
        _measure(runner, name, base, images.first(number), static_clean, static)
        for name, number in MEASURED.items()
    ]
    costs = [
        *(f"{name} was not audited: {audit_cost(name, base, FIT)}" for name in NOT_AUDITED),
        *(f"{name} was not run: {attack_cost(name, base)}" for name in NOT_RUN),
    ]
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
            "sizes inside the defenses have the paper's ratio to this radius, "
            f"{step_size_exception(rows)}",
            f"{COPIES}: as its published code returns them; {POINTS}: the point of highest loss "
            "where it failed",
            str(AutoAttackBudget()),
            str(FIT),
            "the discriminators of ATLD and AID are trained here; the networks are not, so ATLD "
            "has no latent-distribution training",
            *costs,
        ],
        findings=[_finding(one) for one in rows],
        charts=[_chart(rows)],
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


def step_size_exception(rows: Sequence[DefenseAttacks]) -> str:
    """Name the defense whose step size does not have the paper's ratio to the radius."""
    (defense,) = (one.defense for one in rows if isinstance(one.defense, AntiAdversary))
    step = defense.ascent.step_size
    return (
        f"except for the step size of AntiAdversary, {step:g} as in the paper at 8/255 instead of "
        f"{step * RADIUS / (8 / 255):g}: its row may overstate the loss of robustness"
    )


def _play(
    runner: Runner, defense: Defense, adversaries: Sequence[Adversary], images: Images
) -> list[Episode]:
    return runner.play(
        defense,
        adversaries,
        images,
        threat=_threat(defense),
        answers=None,
        name=f"{type(defense).__name__} on {NAME}",
        seed=runner.request.seed,
    )


def _measure(
    runner: Runner,
    name: str,
    base: StaticModel,
    images: Images,
    static_clean: Episode,
    static: Episode,
) -> DefenseAttacks:
    """Fit a defense, and run all attacks and an audit on its images."""
    runner.request.progress(f"fitting {name} on {NAME}")
    defense = DEFENSES[name].make(base, FIT)
    number = len(images.x)
    broken = static.correct[0, :number] == 0
    points = static.points[:number]
    attacks = [
        FixedPoints(),
        FixedPoints(COPIES, torch.where(per_example(broken, images.x), points, images.x)),
        FixedPoints(POINTS, points),
        PAPER_ATTACKS[name](defense, BUDGETS),
    ]
    clean, copies, transferred, paper = _play(runner, defense, attacks, images)
    audit = None
    if name not in NOT_AUDITED:
        audit = runner.audit(
            defense,
            images,
            threat=_threat(defense),
            budget="standard",
            name=f"{name} on {NAME}",
        )
    return DefenseAttacks(
        next(one for one in TABLE if one.name == name),
        defense,
        clean,
        copies,
        transferred,
        paper,
        correct_rate(static)[:number],
        correct_rate(static_clean)[:number],
        audit,
    )


def _threat(defense: Defense) -> Threat:
    return Threat(Linf(RADIUS), draws=DRAWS if defense.random else 1)


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


def _chart(rows: Sequence[DefenseAttacks]) -> Plot:
    """Accuracy as evaluations grow stronger, a line for each defense."""
    points: dict[str, tuple[tuple[float, float], ...]] = {}
    for one in rows:
        rates = (correct_rate(one.clean), correct_rate(one.copies), correct_rate(one.paper))
        shares = [100 * float(rate.mean()) for rate in (*rates, *one.audited)]
        points[one.surveyed.name] = tuple(
            (float(k), share) for k, share in enumerate(shares, start=1)
        )
    return Plot(
        "table-1-evaluations",
        f"Defenses around {NAME}, cifar10, {Linf(RADIUS)}",
        "1: clean, 2: AutoAttack's points with clean copies, 3: the paper's attack, 4: audit",
        "accuracy, %",
        points,
        joined=True,
    )


def _finding(one: DefenseAttacks) -> str:
    gain = difference_cell(one.lowest, one.static)
    return f"{compared_with_static(f'{one.surveyed.name} on {NAME}', gain)}."


def attack_cost(name: str, base: StaticModel, networks: int = 1) -> str:
    """Fit a defense on few images, and say what the paper's attack and an audit would take.

    Args:
        name: name of the defense.
        base: the static network.
        networks: number of networks of this size that are attacked.
    """
    defense, seconds = fitted_on_few(name, base, FIT)
    attack = PAPER_ATTACKS[name](defense, AttackBudgets())
    passes = attack.cost(DRAWS if defense.random else 1)
    assert passes is not None
    hours = networks * IMAGES * passes.total * seconds / 3600
    return (
        f"{about_answer(seconds)}, and {PAPER_ATTACK} with its published budget takes up to "
        f"{passes.total:,.0f} passes, {hours:,.3g} h for {count(IMAGES, 'image')} and "
        f"{count(networks, 'network')}, before the training of auxiliary networks; "
        f"{about_audit(defense, seconds)}"
    )
