"""What an experiment would cost here, measured on a few images, if it is too expensive to run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from saddlepoint.evaluation import FixedPoints
from saddlepoint.papers.registry import Experiment
from saddlepoint.papers.result import Result
from saddlepoint.papers.runner import Images, Runner
from saddlepoint.phrases import count, names
from saddlepoint.training import Recipe, fit, initial

_HOUR = 3600.0


@dataclass(frozen=True)
class CostEstimate:
    """A measured cost per image, and the number of images that the experiment needs."""

    work: str  # what is done with an image, for example "training resnet-18 with PGD-AT"
    seconds: float  # per image, of one processor core
    images: int  # how often it is done with an image
    measured_on: int  # images of the measurement

    @property
    def hours(self) -> float:
        """Total hours of one processor core."""
        return self.seconds * self.images / _HOUR

    def __str__(self) -> str:
        return (
            f"{self.work} takes {self.seconds:.3g} s per image of one processor core (measured on "
            f"{count(self.measured_on, 'image')}) x {count(self.images, 'image')} = "
            f"{self.hours:,.0f} hours"
        )


def training_cost(
    recipe: Recipe, images: Images, *, train_images: int, work: str = ""
) -> CostEstimate:
    """Measure what the training of a recipe costs, by one step on a few images.

    Args:
        recipe: network, training method and number of epochs.
        images: images of the measurement; they are one batch.
        train_images: number of training images of an epoch.
        work: what is measured; default: "training NAME".

    Returns:
        The time of one step, forward and backward passes of the training attack included, per image
        and the number of images of all epochs.
    """
    n = len(images.x)
    one_step = replace(
        recipe, epochs=1, batch_size=n, dev_share=1 / n, select=FixedPoints(), patience=1
    )
    net = initial(recipe, 0)
    fit(net, images.x[:2], images.y[:2], replace(one_step, dev_share=0.5))  # the first is slower
    started = time.process_time()
    fit(net, images.x, images.y, one_step)
    seconds = (time.process_time() - started) / (n - 1)
    return CostEstimate(
        work or f"training {recipe.name}", seconds, train_images * recipe.epochs, n - 1
    )


def result_without_run(
    runner: Runner, experiment: Experiment, needs: str, costs: Sequence[CostEstimate]
) -> Result:
    """Make the result of an experiment that was not run because of its cost.

    Args:
        runner: the runner of the request.
        experiment: the table or figure.
        needs: what the experiment needs and no third-party network provides: "a VGG-16 with five
            exits".
        costs: what it would cost.
    """
    total = sum(cost.hours for cost in costs)
    parts = names([str(cost) for cost in costs])
    sum_of_parts = f", {total:,.0f} hours together" if len(costs) > 1 else ""
    return runner.result(
        experiment,
        (),
        notes=(),
        findings=(),
        charts=(),
        repeats=1,
        not_run=f"it needs {needs}, which the folder of models does not have: {parts}"
        f"{sum_of_parts}.",
    )
