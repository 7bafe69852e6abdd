"""Tables that were not run at scale real: what they would cost, measured on a few images.

RMC, DANN, TADV and URejectron train networks to answer, and each round of an attack trains again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from saddlepoint.phrases import count, names
from saddlepoint.rng import Keys
from saddlepoint.zoo.transductive import DANN

MEASURED_ON = 16
PAPER = SETTINGS["paper"]
TRANSFERRED = ("AA", "PGD")  # the paper's attacks on the static network
SIMULATING = ("FPA", "GMSA-AVG", "GMSA-MIN")  # the paper's attacks that simulate the defender
BATCHES = ("PGD", "CW", "brighter images")  # test batches of Figure 1


def table_1(request: Request) -> Result:
    """State the cost of RMC on one sequence under all attacks."""
    images = PAPER.rmc[1].images
    return _rmc(request, "table-1", 1, images, (*TRANSFERRED, *SIMULATING))


def table_6(request: Request) -> Result:
    """State the cost of RMC on five sequences under GMSA."""
    images = PAPER.rmc[1].table_6_images
    return _rmc(request, "table-6", PAPER.repeats, images, SIMULATING[1:])


def table_3(request: Request) -> Result:
    """State the cost of DANN on MNIST, which is trained again in every round of an attack."""
    setting = PAPER.dann[0]
    runner, images = _start(request, setting.data)
    training = replace(setting.training, epochs=1, batch_size=MEASURED_ON)
    defense = DANN(setting.training.build(), images.x, images.y, training=training)
    seconds = _seconds(lambda: defense.adapt(images.x, _context(images.x))) / MEASURED_ON
    attacks = (*TRANSFERRED, *SIMULATING)
    trainings = _adaptations(attacks, setting.rounds)
    steps = trainings * setting.training.epochs * setting.images
    cost = CostEstimate("one epoch of DANN on MNIST", seconds, steps, MEASURED_ON)
    needs = (
        f"{count(trainings, 'training')} of DANN on MNIST ({_counted(attacks, setting.rounds)}), "
        f"each of {count(setting.training.epochs, 'epoch')} on "
        f"{count(setting.images, 'test image')}"
    )
    return _result(runner, "table-3", needs, cost)


def table_4(request: Request) -> Result:
    """State the cost of TADV on MNIST with the authors' number of networks; ours has more."""
    setting = PAPER.tadv[0]
    runner, images = _start(request, setting.data)
    networks = setting.sources + 2  # one simulates the defender, one answers
    cost = training_cost(
        recipes("paper")["mnist tadv"],
        images,
        train_images=60_000 * networks,
        work=f"training {networks} networks of TADV on MNIST",
    )
    needs = (
        f"{networks} adversarially trained networks on MNIST ({setting.sources} that are attacked, "
        "one that simulates the defender and one that answers)"
    )
    return _result(runner, "table-4", needs, cost)


def figure_1(request: Request) -> Result:
    """State the cost of URejectron on traffic signs."""
    runner, images = _start(request, "gtsrb10")
    recipe = recipes("paper")["signs"]
    # 70 % of the images of ten classes are for training, a tenth of these for validation.
    train_images = 10 * PAPER.signs.per_class * 63 // 100
    batch = 2 * (10 * PAPER.signs.per_class * 30 // 100)  # normal and adversarial images
    discriminators = len(BATCHES)
    cost = training_cost(
        recipe,
        images,
        train_images=train_images + discriminators * (train_images + batch),
        work=f"training {discriminators + 1} networks on traffic signs",
    )
    needs = (
        f"a classifier, trained on {count(train_images, 'image')} for "
        f"{count(recipe.epochs, 'epoch')}, and {count(discriminators, 'discriminator')}, one for "
        f"each test batch ({names(BATCHES)}), trained on these and on the "
        f"{count(batch, 'image')} of it"
    )
    return _result(runner, "figure-1", needs, cost)


def _rmc(
    request: Request, name: str, sequences: int, images: int, attacks: Sequence[str]
) -> Result:
    setting = PAPER.rmc[1]
    runner, measured = _start(request, "cifar10")
    net = LastExit(runner.load_third_party(ROBUST)).eval()
    answers = sequences * images * _adaptations(attacks, setting.rounds)
    tuned = 2 * setting.neighbors * setting.tuning.epochs  # to the neighbors, and to calibrate
    cost = CostEstimate(
        f"a step of fine-tuning of {ROBUST}",
        gradient_seconds(net, measured),
        answers * tuned,
        MEASURED_ON,
    )
    needs = (
        f"{count(answers, 'answer')} of RMC on one base network ({count(sequences, 'sequence')} of "
        f"{count(images, 'image')}, each {_counted(attacks, setting.rounds)}), each of up to "
        f"{count(tuned, 'step')} of single images"
    )
    return _result(runner, name, needs, cost)


def _adaptations(attacks: Sequence[str], rounds: int) -> int:
    """How often a defense adapts to the same images: clean, attacked, and in simulated rounds."""
    return 1 + len(attacks) + rounds * sum(attack in SIMULATING for attack in attacks)


def _counted(attacks: Sequence[str], rounds: int) -> str:
    """Say what `_adaptations` counts."""
    simulating = [attack for attack in attacks if attack in SIMULATING]
    return (
        f"once clean, once under each of {names(attacks)}, and in each of "
        f"{count(rounds, 'round')} of {names(simulating)}"
    )


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
