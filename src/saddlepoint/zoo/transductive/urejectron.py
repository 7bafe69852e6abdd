"""URejectron: rejects the images that a discriminator can distinguish from training data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import misclassified
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation.rejection import RejectionCurve, rejection_tradeoff
from saddlepoint.phrases import count
from saddlepoint.training.loop import cross_entropy_epochs, initialized
from saddlepoint.training.recipe import Adam, Optimizer
from saddlepoint.zoo.nets.resnet import resnet

_FAR = 1e6  # larger than any logit, and finite because outputs must be finite


def domain_resnet18() -> nn.Module:
    """Return a ResNet-18 with two classes: training image or test image."""
    return resnet((2, 2, 2, 2), classes=2)


@dataclass(frozen=True)
class Distinguishing:
    """Settings of the discriminator, which is trained from scratch (Chen et al. 2022, A.6).

    One training corresponds to T = 1 iterations of Goldwasser et al.
    """

    build: Callable[[], nn.Module] = domain_resnet18  # builds the discriminator
    epochs: int = 10
    batch_size: int = 128  # at most
    optimizer: Optimizer = field(default_factory=Adam)


class URejectron(Defense):
    """F where h(x) = P(test | x) <= threshold, a rejection elsewhere.

    h = argmin CE(h(x), 0) over the training images + CE(h(x), 1) over the test images. It is
    evaluated on the same test images (Goldwasser et al. 2020; Chen et al. 2022, Example 3 and A.6).
    The batch should contain clean images beside attacked ones; otherwise rejecting everything has
    no cost. Before it adapts, the defense rejects nothing.

    Args:
        classifier: The network F, [N, ...] -> [N, C].
        x: Training images [M, ...], at least one.
        threshold: Images with h(x) above it are rejected.
        training: The settings of the discriminator.

    Raises:
        ValueError: There are no training images.
    """

    random = True
    memory = "batch"
    rejects = True

    def __init__(
        self,
        classifier: nn.Module,
        x: Tensor,
        *,
        threshold: float = 0.5,
        training: Distinguishing | None = None,
    ) -> None:
        if not len(x):
            raise ValueError(
                "URejectron distinguishes test images from training images, and got no training "
                "images."
            )
        self.classifier = classifier
        self.x = x
        self.threshold = threshold
        self.training = training or Distinguishing()
        self.static = classifier

    def adapt(self, x: Tensor, ctx: Context) -> SelectiveClassifier:
        """Train the discriminator on the training images and on x [N, ...]."""
        seed = ctx.shared_seed()
        training = self.training
        test = x.detach()
        net = initialized(training.build, seed).to(test.device)
        both = torch.cat([self.x.to(test), test])
        is_test = torch.arange(len(both), device=test.device) >= len(self.x)
        epochs = cross_entropy_epochs(
            net,
            training.optimizer.over(net.parameters()),
            both,
            is_test.long(),
            batch_size=training.batch_size,
            seed=seed,
            name="URejectron",
        )
        for _ in islice(epochs, training.epochs):
            pass
        return SelectiveClassifier(self.classifier, net.eval(), self.threshold)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output of the classifier, with a rejection class that is never predicted."""
        logits = self.classifier(x)
        return Trace((View("final", with_rejection(logits, logits.new_full((len(x),), -_FAR))),))


class SelectiveClassifier(Defense):
    """F restricted to S = {x : h(x) <= threshold}; outside S the answer is a rejection.

    The rejection is the last class.

    Args:
        classifier: The network F, [N, ...] -> [N, C].
        discriminator: A network [N, ...] -> [N, 2]; its softmax is (1 - h, h).
        threshold: Images with h(x) above it are rejected.
    """

    rejects = True

    def __init__(self, classifier: nn.Module, discriminator: nn.Module, threshold: float) -> None:
        self.classifier = classifier
        self.discriminator = discriminator
        self.threshold = threshold
        self.static = classifier

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the logits [N, C + 1] with the rejection last."""
        margin = (self.odds(x) - log_odds(self.threshold)).clamp(-_FAR, _FAR)
        return Trace((View("final", with_rejection(self.classifier(x), margin)),))

    def odds(self, x: Tensor) -> Tensor:
        """Return log h / (1 - h), [N]."""
        logits: Tensor = self.discriminator(x)
        return logits[:, 1] - logits[:, 0]


def with_rejection(logits: Tensor, margin: Tensor) -> Tensor:
    """Append a rejection class: z_reject = max_c z_c + margin, so margin > 0 rejects.

    An attack must satisfy two conditions: a wrong class is ahead of the right one, and the image is
    not rejected. Its margin is the smaller of the margins of both.

    Args:
        logits: [N, C].
        margin: [N].

    Returns:
        [N, C + 1].
    """
    return torch.cat([logits, (logits.amax(1) + margin)[:, None]], dim=1)


def log_odds(threshold: float) -> float:
    """Return log t / (1 - t).

    For t <= 0 this is -inf, and everything is rejected. For t >= 1 it is inf, and nothing is.

    Raises:
        ValueError: The threshold is NaN.
    """
    if math.isnan(threshold):
        raise ValueError("a threshold must be a number between 0 and 1, got nan.")
    if not 0 < threshold < 1:
        return -math.inf if threshold <= 0 else math.inf
    return math.log(threshold) - math.log1p(-threshold)


def rejection_curve(
    defense: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    normal: Tensor,
    *,
    thresholds: int | Sequence[float] = 100,
    batch_size: int = 256,
) -> RejectionCurve:
    """Return error and rejection rates on a test batch for a range of thresholds.

    Args:
        defense: The defense after it adapted to the batch.
        x: The test batch [N, ...].
        y: Labels [N].
        normal: Its clean images [M, ...].
        thresholds: The thresholds, or how many equally spaced ones from 0 to 1.
        batch_size: Number of images per forward pass.

    Raises:
        ValueError: There are no images, or not one label per image.
    """
    if len(x) != len(y) or not len(x) or not len(normal):
        raise ValueError(
            "expected test images, one label per image, and clean images; "
            f"got {count(len(x), 'image')}, {count(len(y), 'label')} and "
            f"{count(len(normal), 'clean image')}."
        )
    if isinstance(thresholds, int):
        thresholds = torch.linspace(0, 1, thresholds, dtype=torch.float64).tolist()
    thresholds = sorted(thresholds)
    with torch.no_grad():
        odds, normal_odds = (
            torch.cat([defense.odds(part) for part in torch.split(t, batch_size)]).double()
            for t in (x, normal)
        )
        batches = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
        wrong = torch.cat(
            [misclassified(defense.classifier(part), labels) for part, labels in batches]
        )
    cuts = [log_odds(t) for t in thresholds]
    return rejection_tradeoff(odds, wrong, normal_odds, cuts, thresholds)
