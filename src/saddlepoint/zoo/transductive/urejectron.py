"""URejectron: a classifier that refuses what a discriminator can tell from its training data; and what refusing buys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import fooled
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation.rejection import RejectionCurve, rejection_tradeoff
from saddlepoint.training.descent import initialized, passes
from saddlepoint.training.recipe import Adam, Optimizer
from saddlepoint.zoo.nets.resnet import resnet

_FAR = 1e6  # beyond any logit, and finite: what is answered must be a number


def domain_resnet18() -> nn.Module:
    """ResNet-18 with two answers: seen in training, or asked about."""
    return resnet((2, 2, 2, 2), classes=2)


@dataclass(frozen=True)
class Distinguishing:
    """How the discriminator is trained from scratch (Chen et al. 2022, A.6; its one iteration is T = 1 of Goldwasser et al.)."""

    build: Callable[[], nn.Module] = domain_resnet18
    epochs: int = 10
    batch_size: int = 128  # at most
    optimizer: Optimizer = field(default_factory=Adam)


class URejectron(Defense):
    """F where h(x) = P(asked about | x) <= threshold, a refusal elsewhere; h tells training images from the test batch.

    h = argmin CE(h(x), 0) over the training images + CE(h(x), 1) over the test images, all of them the ones it then judges
    (Goldwasser et al. 2020; Chen et al. 2022, Example 3 and A.6). The batch should hold ordinary images beside the attacker's, or
    there is nothing that must not be refused. Before it has adapted it refuses nothing.
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
                "URejectron tells test images from training images, and was given none of the latter."
            )
        self.classifier = classifier
        self.x = x
        self.threshold = threshold
        self.training = training or Distinguishing()
        self.static = classifier

    def adapt(self, x: Tensor, ctx: Context) -> Redacted:
        seed = ctx.shared_seed()
        training = self.training
        asked = x.detach()
        net = initialized(training.build, seed).to(asked.device)
        both = torch.cat([self.x.to(asked), asked])
        domain = torch.arange(len(both), device=asked.device) >= len(self.x)
        optimizer = training.optimizer.over(net.parameters())
        learning = passes(
            net,
            optimizer,
            both,
            domain.long(),
            batch_size=training.batch_size,
            seed=seed,
            during="URejectron",
        )
        for _ in islice(learning, training.epochs):
            pass
        return Redacted(self.classifier, net.eval(), self.threshold)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        logits = self.classifier(x)
        return Trace((View("final", with_refusal(logits, logits.new_full((len(x),), -_FAR))),))


class Redacted(Defense):
    """F restricted to S = {x : h(x) <= threshold}: outside of it the answer is a refusal, the last column."""

    rejects = True

    def __init__(self, classifier: nn.Module, discriminator: nn.Module, threshold: float) -> None:
        self.classifier = classifier
        self.discriminator = discriminator
        self.threshold = threshold
        self.static = classifier

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        beyond = (self.odds(x) - log_odds(self.threshold)).clamp(-_FAR, _FAR)
        return Trace((View("final", with_refusal(self.classifier(x), beyond)),))

    def odds(self, x: Tensor) -> Tensor:
        """[N] log h / (1 - h)."""
        logits: Tensor = self.discriminator(x)
        return logits[:, 1] - logits[:, 0]


def with_refusal(logits: Tensor, beyond: Tensor) -> Tensor:
    """[N, C] and [N] -> [N, C + 1]: z_reject = max_c z_c + beyond, so that a refusal is answered where beyond > 0.

    The margin by which an attacker wins is then the smaller of two: by which a wrong class leads, and by which it is let through.
    """
    return torch.cat([logits, (logits.amax(1) + beyond)[:, None]], dim=1)


def log_odds(threshold: float) -> float:
    """log t / (1 - t): -inf from t = 0 down, where everything is refused, and inf from t = 1 up, where nothing is."""
    if math.isnan(threshold):
        raise ValueError("a threshold is a number between 0 and 1, got nan.")
    if not 0 < threshold < 1:
        return -math.inf if threshold <= 0 else math.inf
    return math.log(threshold) - math.log1p(-threshold)


def rejection_curve(
    redacted: Redacted,
    x: Tensor,
    y: Tensor,
    normal: Tensor,
    *,
    thresholds: int | Sequence[float] = 100,
    batch_size: int = 256,
) -> RejectionCurve:
    """The curve over a test batch x with labels y; `normal` are its ordinary images. Thresholds: so many from 0 to 1, or these."""
    if len(x) != len(y) or not len(x) or not len(normal):
        raise ValueError(
            f"expected test images, a label for each, and ordinary images; got {len(x)} images, {len(y)} labels and "
            f"{len(normal)} ordinary ones."
        )
    if isinstance(thresholds, int):
        thresholds = torch.linspace(0, 1, thresholds, dtype=torch.float64).tolist()
    thresholds = sorted(thresholds)
    with torch.no_grad():
        odds, beside = (
            torch.cat([redacted.odds(part) for part in torch.split(t, batch_size)]).double()
            for t in (x, normal)
        )
        asked = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
        wrong = torch.cat([fooled(redacted.classifier(part), labels) for part, labels in asked])
    return rejection_tradeoff(odds, wrong, beside, [log_odds(t) for t in thresholds], thresholds)
