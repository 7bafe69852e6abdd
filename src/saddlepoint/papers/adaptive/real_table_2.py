"""Table 2 at scale real: SODEF around a robust CIFAR-10 network that others trained."""

from __future__ import annotations

import torch

from saddlepoint.attacks.spaces import L2, Ball, Linf, per_example
from saddlepoint.data import load_data
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import FixedPoints, Threat
from saddlepoint.papers.adaptive import EXPERIMENTS
from saddlepoint.papers.adaptive.attacks import auto, on_sodef, through_sodef
from saddlepoint.papers.adaptive.defenses import DEFENSES
from saddlepoint.papers.adaptive.real import BATCH, COPIES, FIT, robust_base
from saddlepoint.papers.adaptive.reductions import reductions
from saddlepoint.papers.adaptive.robust_net import NAME, RADIUS
from saddlepoint.papers.adaptive.scales import AttackBudgets
from saddlepoint.papers.adaptive.table_2 import NOTES, NormRows, assemble, findings, norm_rows
from saddlepoint.papers.cells import correct_rate
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.zoo.adaptive import SODEF

IMAGES = 200
BUDGETS = AttackBudgets()
SPACES = {"Linf": Linf(RADIUS), "L2": L2(0.5 * RADIUS / (8 / 255))}  # the paper: 8/255 and 0.5


def run(request: Request) -> Result:
    """Attack SODEF and its static network in both norms."""
    runner = Runner(request, BATCH, threads=1)
    defense, images = sodef_around_robust_net(runner, IMAGES)
    rows = [_row(runner, defense, images, norm, space) for norm, space in SPACES.items()]
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == "adaptive/table-2"),
        assemble("Robust accuracy, %, cifar10", rows, len(images.x)),
        notes=[
            f"static network: {NAME}, adversarially trained by others in Linf at 2/255; the radius "
            "in L2 has the paper's ratio to that in Linf",
            f"AutoAttack (clean copies), transferred: {COPIES}",
            *NOTES,
            str(BUDGETS.auto),
            f"SODEF is fitted on the first {FIT.images} training images",
        ],
        findings=[text for row in rows for text in findings(row)],
        charts=(),
        repeats=1,
    )


def sodef_around_robust_net(runner: Runner, number: int) -> tuple[SODEF, Images]:
    """Fit SODEF around the robust network; return it with this number of test images."""
    request = runner.request
    base = robust_base(runner)
    test = load_data("cifar10", split="test", n=number, root=request.data)
    request.progress(f"fitting SODEF on {NAME}")
    defense = DEFENSES["SODEF"].make(base, FIT)
    assert isinstance(defense, SODEF)
    return defense, Images(test.x, test.y)


def _row(runner: Runner, defense: SODEF, images: Images, norm: str, space: Ball) -> NormRows:
    static_net = Plain(defense.net)
    threat = Threat(space)
    seed = runner.request.seed
    (static,) = runner.play(
        static_net,
        [auto(BUDGETS)],
        images,
        threat=threat,
        answers=None,
        name=f"{NAME}, {norm}",
        seed=seed,
    )
    broken = per_example(static.correct[0] == 0, images.x)
    attacks = [
        FixedPoints(COPIES, torch.where(broken, static.points, images.x)),
        on_sodef(defense, BUDGETS),
        through_sodef(BUDGETS),
        FixedPoints(),
    ]
    episodes = runner.play(
        defense,
        attacks,
        images,
        threat=threat,
        answers=None,
        name=f"SODEF on {NAME}, {norm}",
        seed=seed,
    )
    worst = torch.stack([correct_rate(one) for one in episodes]).amin(0)
    labels = (norm, str(space), reductions("SODEF", FIT, BUDGETS))
    return norm_rows(labels, correct_rate(static), episodes, worst)
