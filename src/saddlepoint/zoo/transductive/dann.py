"""DANN: domain adversarial training on labeled training images and unlabeled test images."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.phrases import count, percent
from saddlepoint.rng import Keys
from saddlepoint.training.loop import initialized, permutation, split_batches, train_epoch
from saddlepoint.training.recipe import (
    Adam,
    Augment,
    Nesterov,
    Optimizer,
    Piecewise,
    Schedule,
    Shift,
    scheduled_rate,
    unchanged,
)
from saddlepoint.zoo.nets.dann import DANNNet, dann_cifar, dann_mnist

# Folded into the random keys: each use of randomness has its own draws.
_SOURCE, _TARGET, _AUGMENT, _DROPOUT = range(1, 5)
_CHECKED = 1000  # labeled images on which the trained network is checked, at most


class ChanceAccuracyWarning(UserWarning):
    """A trained network is no better than a constant prediction on its own training images."""


@dataclass(frozen=True)
class DomainTraining:
    """Settings of domain adversarial training from scratch.

    The defaults are those for MNIST (Chen et al. 2022, A.4.1).
    """

    build: Callable[[], DANNNet] = dann_mnist  # builds the network
    epochs: int = 100
    batch_size: int = 128  # at most; batches of an epoch differ in size by at most one
    optimizer: Optimizer = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=lambda: Piecewise(at=()))
    augment: Augment = unchanged  # of the labeled images
    ceiling: float = 0.1  # the final weight of the reversed gradient

    def alpha(self, done: float) -> float:
        """Return the weight of the reversed gradient after a share `done` of the training.

        alpha = ceiling (2 / (1 + exp(-10 done)) - 1) (Ganin et al. 2016).
        """
        return self.ceiling * (2 / (1 + math.exp(-10 * done)) - 1)


def cifar_domains() -> DomainTraining:
    """Return the settings for CIFAR-10 (Chen et al. 2022, A.4.2).

    ResNet-18, SGD with Nesterov momentum and a stepwise schedule, batches of 64, alpha up to 1.
    """
    return DomainTraining(
        build=dann_cifar,
        batch_size=64,
        optimizer=Nesterov(rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=Piecewise(at=(0.5, 0.75, 0.9)),
        augment=Shift(4, mirror=True),
        ceiling=1.0,
    )


class DANN(Defense):
    """A network that is trained from scratch for every test batch (Chen et al. 2022, Sec. 6, A.4).

    Training uses labeled images (x_s, y_s) and the test images x_t. It minimizes over encoder,
    predictor and discriminator CE(x_s, y_s) + CE_domain(x_s, 0) + CE_domain(x_t, 1), where the
    gradient of the domain losses is multiplied by -alpha before it reaches the encoder (Ganin et
    al. 2016). Each domain has its own batches: batch statistics are separate, but running
    statistics mix both domains. An epoch is as long as the smaller of the two sets. Before it
    adapts, the defense is the network `base`.

    Args:
        base: The network before adaptation.
        x: Labeled images [M, ...], at least two.
        y: Labels [M].
        training: The settings; those for MNIST by default.

    Raises:
        ValueError: There are fewer than two images, or not one label per image.
    """

    random = True
    memory = "batch"

    def __init__(
        self, base: nn.Module, x: Tensor, y: Tensor, *, training: DomainTraining | None = None
    ) -> None:
        if len(x) < 2 or len(x) != len(y):
            raise ValueError(
                "DANN needs at least two labeled images and one label per image, "
                f"got {count(len(x), 'image')} and {count(len(y), 'label')}."
            )
        self.base = base
        self.x = x
        self.y = y
        self.training = training or DomainTraining()
        self.static = base

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        """Train a network on the labeled images and on x [N, ...], at least two images."""
        return Plain(
            train_domain_adversarial(
                self.x, self.y, x.detach(), self.training, seed=ctx.shared_seed()
            )
        )

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output of `base`."""
        return Trace((View("final", self.base(x)),))


def train_domain_adversarial(
    x: Tensor, y: Tensor, target: Tensor, training: DomainTraining, *, seed: int
) -> DANNNet:
    """Train a domain adversarial network from scratch.

    Args:
        x: Labeled images [M, ...].
        y: Labels [M].
        target: Unlabeled images [N, ...], at least two.
        training: The settings.
        seed: Decides initial weights, order, augmentation and dropout.

    Returns:
        The network in eval mode.

    Raises:
        ValueError: There are fewer than two unlabeled images.

    Warns:
        ChanceAccuracyWarning: The network is no better on its labeled images than a prediction of
            the most frequent class. An epoch has few steps if there are few unlabeled images.
    """
    if len(target) < 2:
        raise ValueError(
            f"DANN adapts to batches of test images, got {len(target)}. "
            "Batch statistics need at least two."
        )
    net = initialized(training.build, seed).to(x.device).train()
    run = _Run(net, x, y, target.to(x.device), training, seed)
    optimizer = training.optimizer.over(net.parameters())
    for epoch in range(training.epochs):
        train_epoch(
            optimizer,
            run.batches(epoch),
            partial(run.losses, epoch),
            epoch=epoch + 1,
            epochs=training.epochs,
            seed=run.keys(x).fold_in(_DROPOUT).fold_in(epoch).batch_seed(),
            device=x.device,
            name="DANN",
            learning_rate=scheduled_rate(training.optimizer, training.schedule),
        )
    _warn_at_chance(net.eval(), x[:_CHECKED], y[:_CHECKED], training, len(run.batches(0)))
    return net


def _warn_at_chance(
    net: DANNNet, x: Tensor, y: Tensor, training: DomainTraining, steps: int
) -> None:
    """Warn if the accuracy on labeled images x [M, ...] is within noise of a constant prediction.

    Args:
        net: The trained network.
        x: Labeled images [M, ...].
        y: Labels [M].
        training: The settings.
        steps: Steps per epoch.
    """
    with torch.no_grad():
        correct = float((net(x).argmax(1) == y).double().mean())
    constant = float(y.bincount().max()) / len(y)
    noise = 2 * math.sqrt(constant * (1 - constant) / len(y))
    if correct > constant + noise:
        return
    warnings.warn(
        f"DANN classifies {percent(correct)} of its labeled images correctly after "
        f"{count(training.epochs, 'epoch')} of {count(steps, 'step')}; a constant prediction has "
        f"{percent(constant)}. Its robustness means nothing. Train for more epochs: an epoch is as "
        "long as the smaller of the two sets.",
        ChanceAccuracyWarning,
        stacklevel=3,
    )


def domain_losses(
    net: DANNNet, x: Tensor, y: Tensor, target: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the losses of both domains, from two separate forward passes.

    Args:
        net: The network.
        x: Labeled images [M, ...].
        y: Labels [M].
        target: Unlabeled images [N, ...].
        alpha: The weight of the reversed gradient.

    Returns:
        CE(x, y) + CE_domain(x, 0), [M], and CE_domain(target, 1), [N].
    """
    source_heads = net.heads(x, alpha)
    source_loss = cross_entropy(source_heads.classes, y) + cross_entropy(
        source_heads.domain, torch.zeros_like(y)
    )
    target_heads = net.heads(target, alpha)
    target_domain = torch.ones(len(target), dtype=torch.long, device=target.device)
    return source_loss, cross_entropy(target_heads.domain, target_domain)


@dataclass(frozen=True)
class _Run:
    """The data of one training."""

    net: DANNNet
    x: Tensor
    y: Tensor
    target: Tensor
    training: DomainTraining
    seed: int

    def keys(self, images: Tensor) -> Keys:
        return Keys.of(self.seed, torch.arange(len(images)))

    def batches(self, epoch: int) -> list[tuple[Tensor, Tensor]]:
        """Pair batches of rows of both sets; the longer set is cut."""
        source = permutation(self.keys(self.x).fold_in(_SOURCE).fold_in(epoch))
        target = permutation(self.keys(self.target).fold_in(_TARGET).fold_in(epoch))
        size = self.training.batch_size
        return list(zip(split_batches(source, size), split_batches(target, size), strict=False))

    def losses(
        self, epoch: int, batch: tuple[Tensor, Tensor], done: float
    ) -> tuple[Tensor, Tensor]:
        source, target = (rows.to(self.x.device) for rows in batch)
        keys = Keys.of(self.seed, source).fold_in(_AUGMENT).fold_in(epoch)
        x = self.training.augment(self.x[source], keys)
        alpha = self.training.alpha(done)
        return domain_losses(self.net, x, self.y[source], self.target[target], alpha)
