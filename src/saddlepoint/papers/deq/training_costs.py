"""What the adversarially trained networks of the paper would cost here, measured on a few images.

No third-party equilibrium network was trained with an adversary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from saddlepoint.papers.cost_estimate import CostEstimate, result_without_run, training_cost
from saddlepoint.papers.deq.experiment import DEQExperiment
from saddlepoint.papers.deq.nets import exact, recipes, unrolled
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Images
from saddlepoint.runs.work import torch_threads
from saddlepoint.training import Recipe
from saddlepoint.zoo.deq import EquilibriumTraining, Solved
from saddlepoint.zoo.nets import ConvDEQNet

_TRAINING_IMAGES = 48_000  # of CIFAR-10: 4 % are held out to select the epoch
_EPOCHS = 20  # of a small convolutional network
_FEW = 9  # images of a measurement; the largest network is measured on a third of them


def _small_net() -> ConvDEQNet:
    return ConvDEQNet(image=(3, 32, 32), channels=48, stride=2)


def table_3(request: Request) -> Result:
    """Measure the cost of the networks of Table 3."""
    needs = "equilibrium networks of two sizes that were trained with PGD-AT on CIFAR-10"
    return _not_run(request, "table-3", needs, "unrolled")


def table_4(request: Request) -> Result:
    """Measure the cost of the networks of Table 4."""
    needs = "equilibrium and ordinary networks of equal size, trained with PGD-AT on CIFAR-10"
    return _not_run(request, "table-4", needs, "static")


def _not_run(request: Request, table: str, needs: str, network: str) -> Result:
    experiment = DEQExperiment.open(request)
    images = experiment.training_images("cifar10", _FEW)
    with torch_threads(1):
        costs = [*small_costs(images), _paper_cost(network, images)]
    return result_without_run(experiment.runner, experiment.entry(table), needs, costs)


def small_costs(images: Images) -> list[CostEstimate]:
    """Measure PGD-AT of a small convolutional equilibrium network with the paper's solvers.

    Args:
        images: training images of CIFAR-10.
    """
    basis = _without_warmup(recipes("paper")["unrolled"])
    solvers: dict[str, Callable[[], Solved]] = {
        "exact gradients, 8/7 solver steps": partial(exact, _small_net, 8, 7),
        "exact gradients, 50/50": partial(exact, _small_net, 50, 50),
        "unrolled gradients": partial(unrolled, _small_net, 8),
    }
    return [
        training_cost(
            replace(basis, name=name, net=net, epochs=_EPOCHS),
            images,
            train_images=_TRAINING_IMAGES,
            work=f"{_EPOCHS} epochs of PGD-AT of a convolutional network with {name}",
        )
        for name, net in solvers.items()
    ]


def _paper_cost(name: str, images: Images) -> CostEstimate:
    recipe = _without_warmup(recipes("paper")[name])
    return training_cost(
        recipe,
        images.first(_FEW // 3),
        train_images=_TRAINING_IMAGES,
        work=f"training the paper's network {name} for {recipe.epochs} epochs",
    )


def _without_warmup(recipe: Recipe) -> Recipe:
    """Return the recipe without its first steps, which train without a solver and an adversary."""
    method = recipe.method
    if isinstance(method, EquilibriumTraining):
        method = replace(method, warmup=0)
    return replace(recipe, method=method)
