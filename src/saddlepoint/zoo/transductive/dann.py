"""Domain adversarial networks as a defense: they learn from labeled training images and from the test images without labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.training.descent import (
    batches,
    descend,
    hidden_randomness,
    initialized,
    permutation,
)
from saddlepoint.training.recipe import (
    Adam,
    Augment,
    Nesterov,
    Optimizer,
    Piecewise,
    Schedule,
    Shift,
    unchanged,
)
from saddlepoint.zoo.nets.dann import DANNNet, dann_cifar, dann_mnist

_SOURCE, _TARGET, _AUGMENT, _HIDDEN = range(1, 5)  # each use of randomness tosses its own coins


@dataclass(frozen=True)
class DomainTraining:
    """How a domain adversarial network is trained from scratch; the defaults are those for MNIST (Chen et al. 2022, A.4.1)."""

    build: Callable[[], DANNNet] = dann_mnist
    epochs: int = 100
    batch_size: int = 128  # at most; batches of an epoch are of equal size to within one
    optimizer: Optimizer = field(default_factory=Adam)
    schedule: Schedule = field(default_factory=lambda: Piecewise(at=()))
    augment: Augment = unchanged  # of the labeled images
    ceiling: float = 0.1  # what the weight of the reversed gradient rises to

    def alpha(self, done: float) -> float:
        """ceiling (2 / (1 + exp(-10 p)) - 1) when a share p of the training is behind (Ganin et al. 2016)."""
        return self.ceiling * (2 / (1 + math.exp(-10 * done)) - 1)


def cifar_domains() -> DomainTraining:
    """The training for CIFAR-10 (Chen et al. 2022, A.4.2): ResNet-18, SGD of Nesterov with drops, batches of 64, alpha up to 1."""
    return DomainTraining(
        build=dann_cifar,
        batch_size=64,
        optimizer=Nesterov(rate=0.1, momentum=0.9, weight_decay=1e-4),
        schedule=Piecewise(at=(0.5, 0.75, 0.9)),
        augment=Shift(4, mirror=True),
        ceiling=1.0,
    )


class DANN(Defense):
    """A network trained from scratch on labeled images (x_s, y_s) and on the test images x_t, for each batch of these anew.

    min over encoder, predictor and discriminator of CE(x_s, y_s) + CE_domain(x_s, 0) + CE_domain(x_t, 1), where the gradient of the
    domain losses reaches the encoder times -alpha (Chen et al. 2022, Sec. 6 and A.4; Ganin et al. 2016). Each domain goes through
    the network in batches of its own, so batch statistics do not mix and running ones do. An epoch is as long as the shorter of the
    two sets. Before it has adapted, the defense is the network `base`.
    """

    random = True
    memory = "batch"

    def __init__(
        self, base: nn.Module, x: Tensor, y: Tensor, *, training: DomainTraining | None = None
    ) -> None:
        if len(x) < 2 or len(x) != len(y):
            raise ValueError(
                f"DANN needs two labeled images at least and a label for each, got {len(x)} and {len(y)} labels."
            )
        self.base = base
        self.x = x
        self.y = y
        self.training = training or DomainTraining()
        self.static = base

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Plain(
            adversarially_aligned(self.x, self.y, x.detach(), self.training, seed=ctx.shared_seed())
        )

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.base(x)),))


def adversarially_aligned(
    x: Tensor, y: Tensor, target: Tensor, training: DomainTraining, *, seed: int
) -> DANNNet:
    """The trained network in eval mode: a function of the labeled images, the unlabeled `target` and the seed."""
    if len(target) < 2:
        raise ValueError(
            f"DANN learns from batches of test images, got {len(target)}. Batch statistics need two at least."
        )
    net = initialized(training.build, seed).to(x.device).train()
    target = target.to(x.device)
    optimizer = training.optimizer.over(net.parameters())
    ours, theirs = (Keys.of(seed, torch.arange(len(part))) for part in (x, target))
    for epoch in range(training.epochs):
        order = permutation(ours.fold_in(_SOURCE).fold_in(epoch))
        other = permutation(theirs.fold_in(_TARGET).fold_in(epoch))
        pairs = list(
            zip(
                batches(order, training.batch_size),
                batches(other, training.batch_size),
                strict=False,
            )
        )
        with (
            torch.enable_grad(),
            hidden_randomness(ours.fold_in(_HIDDEN).fold_in(epoch).batch_seed(), x.device),
        ):
            for k, (rows, others) in enumerate(pairs):
                done = (epoch + k / len(pairs)) / training.epochs
                for group in optimizer.param_groups:
                    group["lr"] = training.optimizer.rate * training.schedule.factor(done)
                here = rows.to(x.device)
                seen = training.augment(
                    x[here], Keys.of(seed, here).fold_in(_AUGMENT).fold_in(epoch)
                )
                source, alien = domain_losses(
                    net, seen, y[here], target[others.to(x.device)], training.alpha(done)
                )
                descend(optimizer, source, alien, during=f"DANN, epoch {epoch + 1}")
    return net.eval()


def domain_losses(
    net: DANNNet, x: Tensor, y: Tensor, target: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """CE(x, y) + CE_domain(x, 0), per labeled example, and CE_domain(target, 1), per unlabeled one: two passes."""
    ours = net.heads(x, alpha)
    source = cross_entropy(ours.classes, y) + cross_entropy(ours.domain, torch.zeros_like(y))
    theirs = net.heads(target, alpha)
    return source, cross_entropy(
        theirs.domain, torch.ones(len(target), dtype=torch.long, device=target.device)
    )
