"""How a network and its discriminator are trained against each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from saddlepoint.zoo.adaptive.atld.discriminator import Judgment
from saddlepoint.zoo.adaptive.descent import direction, signed_step
from saddlepoint.zoo.adaptive.learning import Batch, Phase, batches, descend, set_rate

_MOMENTUM = 0.9
_DECAY = 2e-4  # of both SGDs
_JUDGED_TWICE = 2  # updates of the discriminator per batch


@dataclass(frozen=True)
class LatentTraining:
    """One batch of ATLD (Qian et al. 2021, as released), with D's loss l = BCE(D(f(x)), 1) + BCE(D(f(x')), 0):

    1. x' = project(x_0 - radius sign(grad_x' l)) from x_0 = x + U(-radius, radius): what D tells from x most easily;
    2. twice, D descends l + CE(classes of D at f(x) and at f(x'), y smoothed);
    3. f descends CE(f(x'), y smoothed) + (s / 2) mean (f(x') - f(x))^2, with s = max grad_x' CE / max grad_x' of that mean.

    Logits of x are constants of the network in eval mode. With rate 0 the network stays as it was given, and only D is trained.
    """

    network: Phase = field(
        default_factory=lambda: Phase(epochs=200, batch_size=128, rate=0.1, milestones=(60, 90))
    )
    discriminator_rate: float = 1e-3
    radius: float = 8 / 255
    smoothing: float = 0.5  # weight of the other classes together

    def run(
        self, net: nn.Module, discriminator: nn.Module, x: Tensor, y: Tensor, seed: int
    ) -> None:
        """Trains both in place and leaves them in eval mode."""
        frozen = self.network.rate == 0
        slow = torch.optim.SGD(
            discriminator.parameters(),
            self.discriminator_rate,
            momentum=_MOMENTUM,
            weight_decay=_DECAY,
        )
        fast = torch.optim.SGD(
            net.parameters(), self.network.rate, momentum=_MOMENTUM, weight_decay=_DECAY
        )
        discriminator.train()
        with torch.enable_grad():
            for batch in batches(len(x), self.network, seed, x.device):
                natural = _constant(net.eval(), x[batch.rows])
                adversarial = self._adversarial(net, discriminator, x[batch.rows], batch)
                answered = cast(Tensor, net.train(not frozen)(adversarial.requires_grad_()))
                target = smoothed(y[batch.rows], answered.shape[1], self.smoothing).to(answered)
                for _ in range(_JUDGED_TWICE):
                    descend(
                        slow,
                        _told_apart(discriminator, natural, answered.detach(), target).mean(),
                        batch.epoch,
                    )
                if not frozen:
                    set_rate(fast, self.network.rate_in(batch.epoch))
                    descend(
                        fast, _network_loss(answered, natural, target, adversarial), batch.epoch
                    )
        net.eval()
        discriminator.eval()

    def _adversarial(
        self, net: nn.Module, discriminator: nn.Module, x: Tensor, batch: Batch
    ) -> Tensor:
        start = x + self.radius * (2 * batch.keys.uniform(tuple(x.shape[1:]), x.dtype) - 1)
        uphill = direction(lambda v: softplus(discriminator(net(v)).natural), start)
        return signed_step(start, -uphill, self.radius, x, self.radius).detach()


def smoothed(y: Tensor, classes: int, share: float) -> Tensor:
    """[N, C]: 1 - share for the label, and the share spread evenly over the other classes."""
    spread = share / (classes - 1)
    return nn.functional.one_hot(y, classes) * (1 - share - spread) + spread


def _told_apart(
    discriminator: nn.Module, natural: Tensor, adversarial: Tensor, target: Tensor
) -> Tensor:
    """[N]: D's loss on logits of both kinds; each is a batch of its own for D's statistics."""
    real = cast(Judgment, discriminator(natural))
    fake = cast(Judgment, discriminator(adversarial))
    classes = _soft_cross_entropy(real.classes, target) + _soft_cross_entropy(fake.classes, target)
    return softplus(-real.natural) + softplus(fake.natural) + classes


def _network_loss(answered: Tensor, natural: Tensor, target: Tensor, x: Tensor) -> Tensor:
    loss = _soft_cross_entropy(answered, target).mean()
    apart = (answered - natural).square().mean()
    steep = [torch.autograd.grad(value, x, retain_graph=True)[0].amax() for value in (loss, apart)]
    scale = steep[0] / steep[1].clamp(min=torch.finfo(x.dtype).tiny)
    return loss + scale / 2 * apart


def _soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1)


def _constant(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return cast(Tensor, net(x))
