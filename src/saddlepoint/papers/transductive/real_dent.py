"""Tables 2 and 5 at scale real: DENT on a robust network with batch norm that others trained."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.spaces import Linf
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain, view
from saddlepoint.evaluation import (
    Adversary,
    Episode,
    FixedPoint,
    FixedPoints,
    NaturalOrder,
    SortedByLabel,
    Threat,
)
from saddlepoint.papers.budgets import AutoAttackBudget
from saddlepoint.papers.cells import accuracy_cell, correct_rate, difference_cell
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.transductive import EXPERIMENTS
from saddlepoint.papers.transductive.experiment import format_difference
from saddlepoint.papers.transductive.scales import SETTINGS
from saddlepoint.phrases import count
from saddlepoint.rng import Keys
from saddlepoint.training.loop import permutation
from saddlepoint.zoo.transductive import DENT

ROBUST = "cifar10/triplewins_rdi_resnet38"  # with batch norm, adversarially trained at 8/255
SPACE = Linf(8 / 255)
PAPER = SETTINGS["paper"].dent
SETTING = replace(PAPER, images=256, steps=20, step_size=2 / 255, restarts=1, targets=0, rounds=2)
COLUMNS = (
    "static, clean",
    "static, PGD",
    "DENT, clean",
    "DENT, PGD's points",
    "DENT, FPA",
    "DENT minus static, clean",
    "DENT minus static, both under PGD's points",
    "DENT under FPA minus static under PGD",
)


class LastExit(nn.Module):
    """The last of several exits of a network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, C] of the last exit."""
        logits: Tensor = self.net(x)[-1]
        return logits


def table_2(request: Request) -> Result:
    """Run DENT on batches in natural order."""
    return _run(request, "table-2", by_label=False)


def table_5(request: Request) -> Result:
    """Run DENT on batches of images that are sorted by label within windows."""
    return _run(request, "table-5", by_label=True)


def _run(request: Request, table_name: str, *, by_label: bool) -> Result:
    runner = Runner(request, SETTING.batch, threads=1)
    net = LastExit(runner.load_third_party(ROBUST)).eval()
    images = _draw(request)
    portfolio = SETTING.portfolio
    static_threat = Threat(SPACE)
    static_clean, static_pgd = _play(
        runner, Plain(net), [FixedPoints(), portfolio], images, static_threat
    )
    order = SortedByLabel(SETTING.window) if by_label else NaturalOrder()
    threat = Threat(SPACE, state_visible=False, order=order)
    attacks: list[Adversary] = [FixedPoints(), FixedPoints("PGD's points", static_pgd.points)]
    if not by_label:  # sorted batches were attacked by transfer only
        attacks.append(FixedPoint("fpa", portfolio, SETTING.rounds))
    clean, transferred, *fpa = _play(runner, DENT(net), attacks, images, threat)
    accuracies = [correct_rate(one) for one in (static_clean, static_pgd, clean, transferred)]
    cells = (
        *(accuracy_cell(correct) for correct in accuracies),
        accuracy_cell(correct_rate(fpa[0])) if fpa else None,
        difference_cell(accuracies[2], accuracies[0]),
        difference_cell(accuracies[3], accuracies[1]),
        difference_cell(correct_rate(fpa[0]), accuracies[1]) if fpa else None,
    )
    batches = math.ceil(SETTING.images / SETTING.batch)
    table = Table(
        f"Accuracy, %, and differences in points, cifar10, {SPACE}",
        ("base", "order"),
        COLUMNS,
        (Row((ROBUST, "sorted by label" if by_label else "natural"), cells),),
        SETTING.images,
        digits=1,
        units=f"in {batches} batches of {SETTING.batch}",
    )
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == f"transductive/{table_name}"),
        [table],
        notes=_notes(net, images),
        findings=[
            f"DENT under {name} minus the static network under PGD: "
            f"{format_difference(episode, static_pgd)}."
            for name, episode in zip(("PGD's points", "FPA"), (transferred, *fpa), strict=False)
        ],
        charts=(),
        repeats=1,
    )


def _play(
    runner: Runner, defense: Defense, attacks: list[Adversary], images: Images, threat: Threat
) -> list[Episode]:
    return runner.play(
        defense,
        attacks,
        images,
        threat=threat,
        answers={"final": view("final")} if isinstance(defense, Plain) else None,
        name=f"{type(defense).__name__} on {ROBUST}",
        seed=runner.request.seed,
    )


def _draw(request: Request) -> Images:
    found = load_data("cifar10", split="test", root=request.data)
    rows = permutation(Keys.of(request.seed, torch.arange(len(found))))[: SETTING.images]
    return Images(found.x[rows], found.y[rows])


def _notes(net: nn.Module, images: Images) -> list[str]:
    seconds = gradient_seconds(net, images.first(16))
    runs = PAPER.restarts + PAPER.targets
    rounds = range(1, PAPER.rounds + 1)
    # PGD; FPA; GMSA-AVG, which attacks k models in round k; GMSA-MIN with k times as many steps.
    models = 1 + PAPER.rounds + sum(rounds) + sum(k * k for k in rounds)
    hours = SETTING.images * runs * PAPER.steps * models * seconds / 3600
    suite = AutoAttackBudget().attack().cost()
    assert suite is not None
    suite_hours = SETTING.images * suite.total * seconds / 3600
    return [
        f"PGD and FPA: one run of {count(SETTING.steps, 'step')} on the margin, FPA in "
        f"{count(SETTING.rounds, 'round')}. The paper has {runs} runs of {PAPER.steps} steps, "
        f"{count(PAPER.rounds, 'round')}, and GMSA: a gradient takes {1000 * seconds:.1f} ms per "
        f"image of one core here (measured on 16 images), so all of it on these images would take "
        f"{hours:.3g} h, and AutoAttack on the static network up to {suite_hours:.3g} h",
        "DENT has the settings of the paper's tables: 6 AdaMod steps on the scale and shift of "
        "every batch norm, with the information maximization loss",
    ]


def gradient_seconds(net: nn.Module, images: Images) -> float:
    """Measure the processor time of one gradient per image, after a first one."""
    started = 0.0
    for _ in range(2):
        started = time.process_time()
        x = images.x.clone().requires_grad_()
        torch.autograd.grad(margin(net(x), images.y).sum(), x)
    return (time.process_time() - started) / len(images.x)
