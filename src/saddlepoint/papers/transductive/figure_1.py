"""Figure 1: rejections and errors of URejectron under PGD, under CW, and on brighter images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Ball, unbounded_ball
from saddlepoint.data import load_data
from saddlepoint.data.corruptions import brightness
from saddlepoint.data.signs import Parts, prepared
from saddlepoint.defenses import Context
from saddlepoint.evaluation import Direct, Episode, FixedPoints, MaxLossPoint
from saddlepoint.papers.registry import Request
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.papers.runner import Images
from saddlepoint.papers.transductive import EXPERIMENTS, published
from saddlepoint.papers.transductive.charts import TITLES, charts
from saddlepoint.papers.transductive.experiment import TransductiveExperiment, accuracy, describe
from saddlepoint.phrases import count
from saddlepoint.rng import Keys
from saddlepoint.runs.work import torch_threads
from saddlepoint.zoo.transductive import (
    Distinguishing,
    RejectionCurve,
    URejectron,
    rejection_curve,
)

RECIPE = "signs"
ALLOWED = (0.01, 0.1, 0.5)  # fractions of normal images that may be rejected


@dataclass(frozen=True)
class MixedBatch:
    """Normal images, and as many adversarial ones made from them by an attack on the classifier."""

    normal: Tensor  # [N, ...]
    attacked: Episode  # on the same N images
    y: Tensor  # [N] labels

    @property
    def images(self) -> Tensor:
        """[2 N, ...] normal images, then adversarial ones."""
        return torch.cat([self.normal, self.attacked.points])


@dataclass(frozen=True)
class Rejections:
    """Rejections of URejectron, adapted to one test batch, at every threshold."""

    curve: RejectionCurve
    # [T] fraction of rejected clean validation images, which the discriminator was not trained on.
    # It is high if the discriminator memorizes its batch.
    held_out: tuple[float, ...]

    @property
    def half(self) -> int:
        """Index of the threshold that is closest to 1/2."""
        return min(
            range(len(self.curve.thresholds)), key=lambda k: abs(self.curve.thresholds[k] - 0.5)
        )


def run(request: Request) -> Result:
    """Reproduce Figure 1."""
    experiment = TransductiveExperiment.open(request)
    setting = experiment.setting.signs
    recipe = experiment.recipe(RECIPE)
    parts = prepared(
        load_data(setting.data, split="train", n=setting.photographs, root=request.data),
        per_class=setting.per_class,
        seed=request.seed,
    )
    parts = parts._replace(test=parts.test.take(setting.batch_images or len(parts.test)))
    with torch_threads(experiment.setting.threads):
        net = experiment.runner.train(recipe, Images(parts.train.x, parts.train.y))
    batches = mixed_batches(experiment, net, parts)
    with torch_threads(experiment.setting.threads):
        found = {
            discriminator: {
                name: rejections(experiment, net, parts, batch, training)
                for name, batch in batches.items()
            }
            for discriminator, training in setting.discriminators.items()
        }
    n = 2 * len(parts.test)
    return experiment.result(
        EXPERIMENTS[6],
        [classifier_table(experiment, net, parts, batches), rejection_table(found, n)],
        notes=[
            describe(RECIPE, net, recipe.space, recipe),
            *_notes(experiment, parts),
            *setting.changed,
        ],
        findings=[
            f"{discriminator}: {finding}"
            for discriminator, one in found.items()
            for finding in findings(one)
        ],
        charts=[
            chart
            for discriminator, one in found.items()
            for chart in charts(discriminator, {name: each.curve for name, each in one.items()})
        ],
    )


def _notes(experiment: TransductiveExperiment, parts: Parts) -> list[str]:
    setting = experiment.setting.signs
    return [
        f"{len(parts.train)} training, {len(parts.dev)} validation and {len(parts.test)} test "
        "images; warped copies make the classes equally large before the split, as in the paper",
        f"PGD with {setting.pgd.steps} steps; CW with {setting.cw.steps} steps, its constant fixed "
        f"at {setting.cw.constant:g} and the perturbation unbounded; brightness of severity 1",
        *(
            f"{name}: trained for {count(training.epochs, 'epoch')} on "
            f"{setting.known or len(parts.train)} training images and on the "
            f"{2 * len(parts.test)} images that it then accepts or rejects"
            for name, training in setting.discriminators.items()
        ),
        f"held-out clean: the {len(parts.dev)} validation images, which are not used to train any "
        "discriminator",
    ]


def mixed_batches(
    experiment: TransductiveExperiment, net: nn.Module, parts: Parts
) -> dict[str, MixedBatch]:
    """The three test batches of the figure, by its letters a, b and c.

    Args:
        experiment: the experiment.
        net: the classifier.
        parts: training, validation and test images.

    Returns:
        Normal and adversarial images per batch.
    """
    setting = experiment.setting.signs
    space = experiment.recipe(RECIPE).space
    x, y = parts.test
    brighter = brightness(x, 1, Keys.of(experiment.request.seed, torch.arange(len(x))))
    pgd = MaxLossPoint(Direct("pgd", setting.pgd, cross_entropy))
    unbounded = unbounded_ball(x[0].numel(), p=2)

    def attacked(normal: Tensor, adversary: MaxLossPoint | Direct, space: Ball) -> MixedBatch:
        (episode,) = experiment.attack_static(net, [adversary], Images(normal, y), space, RECIPE)
        return MixedBatch(normal, episode, y)

    return {
        "a": attacked(x, pgd, space),
        "b": attacked(x, Direct("cw", setting.cw), unbounded),
        "c": attacked(brighter, pgd, space),
    }


def rejections(
    experiment: TransductiveExperiment,
    net: nn.Module,
    parts: Parts,
    batch: MixedBatch,
    training: Distinguishing,
) -> Rejections:
    """Adapt URejectron to a whole test batch and measure its rejections.

    Args:
        experiment: the experiment.
        net: the classifier.
        parts: training, validation and test images.
        batch: the test batch.
        training: the discriminator and its training.

    Returns:
        Rejections and errors at every threshold.
    """
    setting = experiment.setting.signs
    images = batch.images
    y = batch.y.repeat(2)
    defense = URejectron(net, parts.train.x[: setting.known], training=training)
    with torch.no_grad():
        adapted = defense.adapt(images, Context.seeded(experiment.request.seed, len(images)))
    thresholds = log_odds_thresholds(setting.thresholds)
    curve, held_out = (
        rejection_curve(adapted, images, y, normal, thresholds=thresholds)
        for normal in (batch.normal, parts.dev.x)
    )
    return Rejections(curve, held_out.rejected_normal)


def log_odds_thresholds(count: int) -> list[float]:
    """Thresholds 0 and 1, and between them values that are evenly spaced in log odds.

    A confident discriminator has probabilities close to 0 and 1, which an evenly spaced grid of
    probabilities does not resolve.

    Args:
        count: number of thresholds.

    Returns:
        Thresholds in increasing order.
    """
    return [0.0, *torch.linspace(-12, 12, count - 2, dtype=torch.float64).sigmoid().tolist(), 1.0]


def classifier_table(
    experiment: TransductiveExperiment,
    net: nn.Module,
    parts: Parts,
    batches: Mapping[str, MixedBatch],
) -> Table:
    """Accuracy of the classifier without rejections, as the baseline of the rejection table.

    Args:
        experiment: the experiment.
        net: the classifier.
        parts: training, validation and test images.
        batches: the test batches.

    Returns:
        One row per setting of images.
    """
    plain = {"train": parts.train, "validation": parts.dev, "test": parts.test}
    space = experiment.recipe(RECIPE).space
    found = {
        name: experiment.attack_static(net, [FixedPoints()], Images(*part), space, RECIPE)[0]
        for name, part in plain.items()
    }
    brighter = Images(batches["c"].normal, batches["c"].y)
    found |= {
        "PGD": batches["a"].attacked,
        "CW": batches["b"].attacked,
        "brightness": experiment.attack_static(net, [FixedPoints()], brighter, space, RECIPE)[0],
    }
    rows = tuple(
        Row((name,), (accuracy([episode], published.FIGURE_1.get(name)),))
        for name, episode in found.items()
    )
    return Table(
        "The classifier alone, on test images unless the row names another set",
        ("images",),
        ("accuracy, %",),
        rows,
        len(parts.test),
    )


def rejection_table(found: Mapping[str, Mapping[str, Rejections]], n: int) -> Table:
    """Errors among accepted images at given rejection rates, and all rates at the threshold 1/2.

    Args:
        found: rejections by discriminator and by the letter of the test batch.
        n: images per test batch.

    Returns:
        One row per discriminator and test batch, in percent.
    """
    rows = [
        Row((discriminator, TITLES[name]), _rejection_cells(one))
        for discriminator, by_batch in found.items()
        for name, one in by_batch.items()
    ]
    columns = (
        *(
            f"error among accepted, at most {100 * share:g} % of normal rejected"
            for share in ALLOWED
        ),
        "threshold 1/2: normal rejected",
        "held-out clean rejected",
        "attacked rejected",
        "error among accepted",
        "accepted and misclassified, of all images (Eq. 1)",
    )
    return Table(
        "Rejections and errors of URejectron, %",
        ("discriminator", "test batch"),
        columns,
        tuple(rows),
        n,
        units="in one batch",
    )


def _rejection_cells(found: Rejections) -> tuple[Cell, ...]:
    curve = found.curve
    half = found.half
    # Half of the batch is normal: rejected = (rejected_normal + rejected_attacked) / 2.
    rejected_attacked = 2 * curve.rejected[half] - curve.rejected_normal[half]
    at_half = (
        curve.rejected_normal[half],
        found.held_out[half],
        rejected_attacked,
        curve.error[half],
        curve.error_of_all[half],
    )
    values = [*(error_at_rejection(curve, share) for share in ALLOWED), *at_half]
    return tuple(Cell((100 * value,)) for value in values)


def error_at_rejection(curve: RejectionCurve, share: float) -> float:
    """Error among accepted images at the strictest threshold that is allowed.

    Args:
        curve: rejections and errors in order of increasing thresholds.
        share: fraction of normal images that may be rejected.

    Returns:
        The error at the first threshold that rejects no more than `share` of the normal images.
    """
    return next(
        error
        for error, rejected in zip(curve.error, curve.rejected_normal, strict=True)
        if rejected <= share
    )


def rejection_at_error(curve: RejectionCurve, error: float) -> float:
    """Lowest fraction of rejected normal images at which errors are rare enough.

    Args:
        curve: rejections and errors at every threshold.
        error: highest allowed error among accepted images.

    Returns:
        The lowest rejection rate over all thresholds with an error of at most `error`.
    """
    return min(
        rejected
        for found, rejected in zip(curve.error, curve.rejected_normal, strict=True)
        if found <= error
    )


def findings(found: Mapping[str, Rejections]) -> list[str]:
    """Compare the results with the paper's statements about the three test batches.

    Args:
        found: rejections by the letter of the test batch.

    Returns:
        Sentences about errors if at most a tenth of the normal images may be rejected, and about
        rejections at the threshold 1/2.
    """
    curves = {name: one.curve for name, one in found.items()}
    a, b, c = (error_at_rejection(curves[name], 0.1) for name in "abc")
    under_cw = (
        "more errors than under PGD, as in the paper"
        if b > a
        else "no more errors than under PGD, against the paper"
    )
    allowed = max(a, 0.01)
    brighter, clean = (rejection_at_error(curves[name], allowed) for name in "ca")
    at_half = {name: one.curve.rejected_normal[one.half] for name, one in found.items()}
    if at_half["c"] <= 0.5:
        verdict = "most brighter images are accepted, against the paper"
    elif at_half["a"] > 0.5:
        verdict = "clean images are rejected as well, so this says nothing about brightness"
    else:
        verdict = "brighter images are rejected, as in the paper"
    return [
        f"(a) With at most 10 % of clean images rejected, {100 * a:.1f} % of the accepted images "
        "are misclassified under PGD.",
        f"(b) Under CW it is {100 * b:.1f} %: {under_cw}.",
        f"(c) With brighter normal images it is {100 * c:.1f} %; to reduce the error to that of "
        f"(a), or to 1 % if that is higher, {100 * brighter:.1f} % of the brighter images must be "
        f"rejected, and {100 * clean:.1f} % of the clean images in (a).",
        f"(c) At the threshold 1/2, {100 * at_half['c']:.1f} % of the brighter images are "
        f"rejected, and {100 * at_half['a']:.1f} % of the clean images in (a): {verdict}.",
    ]
