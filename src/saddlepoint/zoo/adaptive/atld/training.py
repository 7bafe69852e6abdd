"""Training of a network and its discriminator against each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from saddlepoint.zoo.adaptive.atld.discriminator import DiscriminatorOutput
from saddlepoint.zoo.adaptive.fitting import (
    Batch,
    Phase,
    minibatches,
    optimizer_step,
    set_learning_rate,
)
from saddlepoint.zoo.adaptive.gradient_steps import gradient_sign, projected_step

_MOMENTUM = 0.9
_WEIGHT_DECAY = 2e-4  # of both optimizers
_DISCRIMINATOR_UPDATES = 2  # per batch


@dataclass(frozen=True)
class LatentTraining:
    """Training of ATLD (Qian et al. 2021, as in the released code).

    With the discriminator loss l = BCE(D(f(x)), 1) + BCE(D(f(x')), 0), each batch does:

    1. x' = project(x_0 - radius sign(grad_x' l)) from x_0 = x + U(-radius, radius), the point that
       D distinguishes most easily from x;
    2. two updates of D on l + CE(class logits of D at f(x) and at f(x'), smoothed y);
    3. one update of f on CE(f(x'), smoothed y) + (s / 2) mean (f(x') - f(x))^2, where s is the
       maximum of grad_x' CE divided by the maximum of grad_x' of that mean.

    The logits f(x) are constants, computed by the network in eval mode. With a network learning
    rate of 0 only D is trained.
    """

    network: Phase = field(
        default_factory=lambda: Phase(epochs=200, batch_size=128, rate=0.1, milestones=(60, 90))
    )
    discriminator_rate: float = 1e-3  # learning rate of D
    radius: float = 8 / 255  # Linf radius of x', in units of the input
    smoothing: float = 0.5  # total weight of the other classes in the smoothed labels

    def run(
        self, net: nn.Module, discriminator: nn.Module, x: Tensor, y: Tensor, seed: int
    ) -> None:
        """Train both networks in place and leave them in eval mode.

        Args:
            net: Classifier [N, ...] -> [N, C].
            discriminator: Maps logits [N, C] to a `DiscriminatorOutput`.
            x: [M, ...] training images.
            y: [M] labels.
            seed: Seed of the minibatches and the random starts.
        """
        frozen = self.network.rate == 0
        discriminator_optimizer = _sgd(discriminator, self.discriminator_rate)
        network_optimizer = _sgd(net, self.network.rate)
        discriminator.train()
        with torch.enable_grad():
            for batch in minibatches(len(x), self.network, seed, x.device):
                natural = _constant_logits(net.eval(), x[batch.rows])
                attacked = self._adversarial(net, discriminator, x[batch.rows], batch)
                logits = cast(Tensor, net.train(not frozen)(attacked.requires_grad_()))
                target = smoothed(y[batch.rows], logits.shape[1], self.smoothing).to(logits)
                for _ in range(_DISCRIMINATOR_UPDATES):
                    losses = _discriminator_loss(discriminator, natural, logits.detach(), target)
                    optimizer_step(discriminator_optimizer, losses.mean(), batch.epoch)
                if not frozen:
                    set_learning_rate(network_optimizer, self.network.rate_at(batch.epoch))
                    loss = _network_loss(logits, natural, target, attacked)
                    optimizer_step(network_optimizer, loss, batch.epoch)
        net.eval()
        discriminator.eval()

    def _adversarial(
        self, net: nn.Module, discriminator: nn.Module, x: Tensor, batch: Batch
    ) -> Tensor:
        """Return x', one signed step from a random start that lowers D's loss."""
        start = x + self.radius * (2 * batch.keys.uniform(tuple(x.shape[1:]), x.dtype) - 1)
        sign = gradient_sign(lambda v: softplus(discriminator(net(v)).natural_logit), start)
        return projected_step(start, -sign, self.radius, x, self.radius).detach()


def smoothed(y: Tensor, classes: int, share: float) -> Tensor:
    """Return smoothed labels [N, C]: 1 - share for the label, the share split over the others."""
    spread = share / (classes - 1)
    return nn.functional.one_hot(y, classes) * (1 - share - spread) + spread


def _sgd(module: nn.Module, learning_rate: float) -> torch.optim.SGD:
    return torch.optim.SGD(
        module.parameters(), learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY
    )


def _discriminator_loss(
    discriminator: nn.Module, natural: Tensor, adversarial: Tensor, target: Tensor
) -> Tensor:
    """Return D's loss [N] on natural and adversarial logits.

    The two kinds are passed as separate batches, so that batch norm sees each on its own.
    """
    real = cast(DiscriminatorOutput, discriminator(natural))
    fake = cast(DiscriminatorOutput, discriminator(adversarial))
    real_classes = _soft_cross_entropy(real.class_logits, target)
    fake_classes = _soft_cross_entropy(fake.class_logits, target)
    classes = real_classes + fake_classes
    return softplus(-real.natural_logit) + softplus(fake.natural_logit) + classes


def _network_loss(logits: Tensor, natural: Tensor, target: Tensor, x: Tensor) -> Tensor:
    """Return the scalar loss of the network in step 3 of `LatentTraining`."""
    loss = _soft_cross_entropy(logits, target).mean()
    distance = (logits - natural).square().mean()
    largest = [
        torch.autograd.grad(value, x, retain_graph=True)[0].amax() for value in (loss, distance)
    ]
    scale = largest[0] / largest[1].clamp(min=torch.finfo(x.dtype).tiny)
    return loss + scale / 2 * distance


def _soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


def _constant_logits(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return cast(Tensor, net(x))
