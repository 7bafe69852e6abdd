"""The tables of this paper at scale real: what they would cost, measured on a few images.

The third-party networks include one that is robust and has batch norm, which DENT needs, and none
that RMC, DANN, TADV or URejectron could use without hours of training for every answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import margin
from saddlepoint.data import load_data
from saddlepoint.defenses import Context
from saddlepoint.papers.price import Price, result_without_run, training_price
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.papers.transductive import EXPERIMENTS
from saddlepoint.papers.transductive.nets import recipes
from saddlepoint.papers.transductive.scales import SETTINGS
from saddlepoint.rng import Keys
from saddlepoint.zoo.transductive import DANN, DENT

ROBUST = "cifar10/triplewins_rdi_resnet38"  # with batch norm, adversarially trained at 8/255
MEASURED_ON = 16
DENT_IMAGES = 200
RMC_IMAGES = 64
PAPER = SETTINGS["paper"]


class LastExit(nn.Module):
    """The last of several exits of a network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [N, C] of the last exit."""
        logits: Tensor = self.net(x)[-1]
        return logits


def table_1(request: Request) -> Result:
    """State the price of RMC on one sequence."""
    return _rmc(request, "table-1", sequences=1)


def table_6(request: Request) -> Result:
    """State the price of RMC on five sequences."""
    return _rmc(request, "table-6", sequences=PAPER.repeats)


def table_2(request: Request) -> Result:
    """State the price of DENT on batches in natural order."""
    return _dent(request, "table-2")


def table_5(request: Request) -> Result:
    """State the price of DENT on sorted batches."""
    return _dent(request, "table-5")


def table_3(request: Request) -> Result:
    """State the price of DANN, which is trained again in every round of an attack."""
    setting = PAPER.dann[0]
    runner, images = _start(request, setting.data)
    training = replace(setting.training, epochs=1, batch_size=MEASURED_ON)
    defense = DANN(setting.training.build(), images.x, images.y, training=training)
    seconds = _seconds(lambda: defense.adapt(images.x, _context(images.x))) / MEASURED_ON
    # Clean images, three transferred sets of points, and every round of FPA and of two GMSA.
    trainings = 4 + 3 * (setting.rounds + 1)
    steps = trainings * setting.training.epochs * setting.images
    price = Price("one epoch of DANN on MNIST", seconds, steps, MEASURED_ON)
    return _result(runner, "table-3", f"{trainings} trainings of DANN", [price])


def table_4(request: Request) -> Result:
    """State the price of TADV, which draws one of many adversarially trained networks."""
    setting = PAPER.tadv[0]
    runner, images = _start(request, setting.data)
    networks = setting.many_sources + 1 + setting.finals
    price = training_price(
        recipes("paper")["mnist tadv"],
        images,
        train_images=60_000 * networks,
        work=f"training {networks} networks of TADV on MNIST",
    )
    return _result(runner, "table-4", f"{networks} adversarially trained networks", [price])


def figure_1(request: Request) -> Result:
    """State the price of URejectron on traffic signs."""
    runner, images = _start(request, "gtsrb10")
    recipe = recipes("paper")["signs"]
    train_images = 10 * PAPER.signs.per_class * 63 // 100
    networks = 1 + 3 * len(PAPER.signs.discriminators)
    price = training_price(
        recipe,
        images,
        train_images=train_images * networks,
        work=f"training a classifier and {networks - 1} discriminators on traffic signs",
    )
    return _result(runner, "figure-1", f"{networks} networks on GTSRB", [price])


def _dent(request: Request, name: str) -> Result:
    setting = PAPER.dent
    runner, images = _start(request, "cifar10")
    net = LastExit(runner.load_third_party(ROBUST)).eval()
    runs = setting.restarts + setting.targets
    rounds = range(1, setting.rounds + 1)
    # PGD; FPA; GMSA-AVG, which attacks k models in round k; GMSA-MIN with k times as many steps.
    models = 1 + setting.rounds + sum(rounds) + sum(k * k for k in rounds)
    gradients = Price(
        f"a gradient of the last exit of {ROBUST} in {runs} runs of PGD, FPA and GMSA",
        _seconds(lambda: _gradient(net, images)) / MEASURED_ON,
        DENT_IMAGES * runs * setting.steps * models,
        MEASURED_ON,
    )
    defense = DENT(net)
    adaptation = Price(
        "one adaptation of DENT",
        _seconds(lambda: defense.adapt(images.x, _context(images.x))) / MEASURED_ON,
        DENT_IMAGES * (4 + 3 * setting.rounds),
        MEASURED_ON,
    )
    return _result(runner, name, "attacks on DENT", [gradients, adaptation])


def _rmc(request: Request, name: str, *, sequences: int) -> Result:
    setting = PAPER.rmc[1]
    runner, images = _start(request, "cifar10")
    net = LastExit(runner.load_third_party(ROBUST)).eval()
    # Every round adapts to the neighbors and calibrates; FPA and two GMSA simulate both.
    answers = sequences * RMC_IMAGES * (4 + 3 * setting.rounds)
    tuned = 2 * setting.neighbors * setting.tuning.epochs
    price = Price(
        f"a step of fine-tuning of {ROBUST}",
        _seconds(lambda: _gradient(net, images)) / MEASURED_ON,
        answers * tuned,
        MEASURED_ON,
    )
    needs = f"{answers} answers of RMC, each of up to {tuned} steps of single images"
    return _result(runner, name, needs, [price])


def _start(request: Request, data: str) -> tuple[Runner, Images]:
    found = load_data(data, split="train", n=MEASURED_ON, root=request.data)
    return Runner(request, MEASURED_ON, threads=1), Images(found.x, found.y)


def _result(runner: Runner, name: str, needs: str, prices: list[Price]) -> Result:
    experiment = next(one for one in EXPERIMENTS if one.name == f"transductive/{name}")
    return result_without_run(runner, experiment, needs, prices)


def _gradient(net: nn.Module, images: Images) -> Tensor:
    x = images.x.clone().requires_grad_()
    return torch.autograd.grad(margin(net(x), images.y).sum(), x)[0]


def _context(x: Tensor) -> Context:
    return Context(Keys.of(0, torch.arange(len(x))))


def _seconds(work: Callable[[], object]) -> float:
    """Measure the processor time of one call, after a first call."""
    work()
    started = time.process_time()
    work()
    return time.process_time() - started
