"""What the networks of the paper would cost here that no third-party network replaces."""

from __future__ import annotations

from saddlepoint.papers.cost_estimate import result_without_run, training_cost
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.experiment import MultiExitExperiment
from saddlepoint.papers.multi_exit.nets import recipes
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Result
from saddlepoint.runs.work import torch_threads

_TRAINING_IMAGES = 48_000  # of CIFAR-10: 4 % are held out to select the epoch
_FEW = 5  # images of a measurement


def table_3(request: Request) -> Result:
    """Measure the cost of the networks of Table 3: VGG-16, trained by five methods."""
    experiment = MultiExitExperiment.open(request)
    images = experiment.training_images("cifar10", _FEW)
    costs = []
    for method in published.TABLE_3:
        name = "vgg-16" if method == "PGD-AT" else f"vgg-16 {method}"
        recipe = recipes("paper")[name]
        work = f"training VGG-16 with {method} for {recipe.epochs} epochs"
        with torch_threads(1):
            cost = training_cost(recipe, images, train_images=_TRAINING_IMAGES, work=work)
        costs.append(cost)
    needs = "VGG-16 with five exits and with one, each trained by five methods"
    return result_without_run(experiment.runner, experiment.entry("table-3"), needs, costs)
