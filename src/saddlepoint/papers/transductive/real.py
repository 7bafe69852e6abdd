"""Tables that were not run at scale real: what they would cost, measured on a few images.

RMC, DANN, TADV and URejectron train networks to answer, and each round of an attack trains again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.data import load_data
from saddlepoint.defenses import Context
from saddlepoint.papers.cost_estimate import CostEstimate, training_cost
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.transductive import EXPERIMENTS
from saddlepoint.papers.transductive.nets import recipes
from saddlepoint.papers.transductive.real_dent import ROBUST, LastExit, gradient_seconds
from saddlepoint.papers.transductive.scales import SETTINGS
from saddlepoint.rng import Keys
from saddlepoint.zoo.transductive import DANN

MEASURED_ON = 16
RMC_IMAGES = 64
PAPER = SETTINGS["paper"]


def table_1(request: Request) -> Result:
    """State the cost of RMC on one sequence."""
    return _rmc(request, "table-1", sequences=1)


def table_6(request: Request) -> Result:
    """State the cost of RMC on five sequences."""
    return _rmc(request, "table-6", sequences=PAPER.repeats)


def table_3(request: Request) -> Result:
    """State the cost of DANN, which is trained again in every round of an attack."""
    setting = PAPER.dann[0]
    runner, images = _start(request, setting.data)
    training = replace(setting.training, epochs=1, batch_size=MEASURED_ON)
    defense = DANN(setting.training.build(), images.x, images.y, training=training)
    seconds = _seconds(lambda: defense.adapt(images.x, _context(images.x))) / MEASURED_ON
    # Clean images, three transferred sets of points, and every round of FPA and of two GMSA.
    trainings = 4 + 3 * (setting.rounds + 1)
    steps = trainings * setting.training.epochs * setting.images
    cost = CostEstimate("one epoch of DANN on MNIST", seconds, steps, MEASURED_ON)
    return _result(runner, "table-3", f"{trainings} trainings of DANN", cost)


def table_4(request: Request) -> Result:
    """State the cost of TADV, which draws one of many adversarially trained networks."""
    setting = PAPER.tadv[0]
    runner, images = _start(request, setting.data)
    networks = setting.many_sources + 1 + setting.finals
    cost = training_cost(
        recipes("paper")["mnist tadv"],
        images,
        train_images=60_000 * networks,
        work=f"training {networks} networks of TADV on MNIST",
    )
    return _result(runner, "table-4", f"{networks} adversarially trained networks", cost)


def figure_1(request: Request) -> Result:
    """State the cost of URejectron on traffic signs."""
    runner, images = _start(request, "gtsrb10")
    recipe = recipes("paper")["signs"]
    train_images = 10 * PAPER.signs.per_class * 63 // 100
    networks = 1 + 3 * len(PAPER.signs.discriminators)
    cost = training_cost(
        recipe,
        images,
        train_images=train_images * networks,
        work=f"training a classifier and {networks - 1} discriminators on traffic signs",
    )
    return _result(runner, "figure-1", f"{networks} networks on GTSRB", cost)


def _rmc(request: Request, name: str, *, sequences: int) -> Result:
    setting = PAPER.rmc[1]
    runner, images = _start(request, "cifar10")
    net = LastExit(runner.load_third_party(ROBUST)).eval()
    # Every round adapts to the neighbors and calibrates; FPA and two GMSA simulate both.
    answers = sequences * RMC_IMAGES * (4 + 3 * setting.rounds)
    tuned = 2 * setting.neighbors * setting.tuning.epochs
    cost = CostEstimate(
        f"a step of fine-tuning of {ROBUST}",
        gradient_seconds(net, images),
        answers * tuned,
        MEASURED_ON,
    )
    needs = f"{answers} answers of RMC, each of up to {tuned} steps of single images"
    return _result(runner, name, needs, cost)


def _start(request: Request, data: str) -> tuple[Runner, Images]:
    found = load_data(data, split="train", n=MEASURED_ON, root=request.data)
    return Runner(request, MEASURED_ON, threads=1), Images(found.x, found.y)


def _result(runner: Runner, name: str, needs: str, cost: CostEstimate) -> Result:
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == f"transductive/{name}"),
        (),
        notes=(),
        findings=(),
        charts=(),
        repeats=1,
        not_run=f"with the paper's settings it needs {needs}: {cost}.",
    )


def _context(x: Tensor) -> Context:
    return Context(Keys.of(0, torch.arange(len(x))))


def _seconds(work: Callable[[], object]) -> float:
    """Measure the processor time of one call, after a first call."""
    work()
    started = time.process_time()
    work()
    return time.process_time() - started
