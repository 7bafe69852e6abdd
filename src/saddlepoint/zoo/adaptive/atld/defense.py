"""ATLD with its inference manifold transformation as a defense."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.atld.discriminator import LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import LatentTraining
from saddlepoint.zoo.adaptive.descent import direction, signed_step
from saddlepoint.zoo.adaptive.layers import refuse_training
from saddlepoint.zoo.adaptive.learning import refuse_data, seeded

_TRAINING = LatentTraining()
_UNSURE = (
    0.3,
    0.7,
)  # where the discriminator's probability lies between these, half a step is taken


class ATLD(Defense):
    """x_{t+1} = project(x_t - m step_size sign(grad BCE(D(f(x_t)), 1))) around x; answers f(x_steps).

    D judges by the logits whether an image is natural, m is 1/2 where its probability lies between 0.3 and 0.7, else 1: inference
    with manifold transformation (Qian et al. 2021; Croce et al. 2022, A.1, Eq. 10). Lengths are those of pixels in [0, 1]: the
    released 16/255 is for [-1, 1], and with the one step of the paper the projection binds at the box alone. "imt/t" is the network
    at x_t, so "imt/0" is the static network. A step crosses the site "imt"; its sign has no slope, so the exact gradient differs
    from `BPDA()` only where a pixel ends at 0 or 1.

    BCE is taken from log-odds, whose gradient does not round to zero where the released sigmoid saturates.
    """

    def __init__(
        self,
        net: nn.Module,
        discriminator: nn.Module | None = None,  # logits [N, C] -> Judgment
        *,
        steps: int = 1,
        step_size: float = 8 / 255,
        radius: float = 8 / 255,
    ) -> None:
        if steps < 0 or step_size <= 0 or radius <= 0:
            raise ValueError(
                f"ATLD needs steps >= 0, step_size > 0 and radius > 0, got steps={steps}, step_size={step_size}, radius={radius}."
            )
        refuse_training(net)
        self.net = net
        self.discriminator = discriminator
        self.static = net
        self.steps = steps
        self.step_size = step_size
        self.radius = radius

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = [View("imt/0", self.net(x))] if ctx.keeps("imt/0") or not self.steps else []
        here = x
        for t in range(1, self.steps + 1):
            here = ctx.through("imt", partial(self._step, x), here)
            if ctx.keeps(f"imt/{t}") or t == self.steps:
                views.append(View(f"imt/{t}", self.net(here)))
        return Trace(tuple(views))

    def fit(
        self, x: Tensor, y: Tensor, *, training: LatentTraining = _TRAINING, seed: int = 0
    ) -> ATLD:
        """This defense trained: a copy of the network and a discriminator, against each other; see `LatentTraining`."""
        refuse_data(x, y)
        net = copy.deepcopy(self.net)
        discriminator = (
            self._new(x, seed) if self.discriminator is None else copy.deepcopy(self.discriminator)
        )
        training.run(net, discriminator, x, y, seed)
        return ATLD(
            net, discriminator, steps=self.steps, step_size=self.step_size, radius=self.radius
        )

    def natural(self, x: Tensor) -> Tensor:
        """[N]: log-odds that the images are natural, as the discriminator sees them."""
        if self.discriminator is None:
            raise RuntimeError(
                "ATLD has no discriminator yet. Call fit: ATLD(net).fit(x, y), or give one: ATLD(net, discriminator)."
            )
        odds: Tensor = self.discriminator(self.net(x)).natural
        return odds

    def _step(self, center: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            sure = self.natural(x).sigmoid()
        share = torch.where((sure > _UNSURE[0]) & (sure < _UNSURE[1]), 0.5, 1.0).to(x)
        uphill = direction(lambda v: softplus(-self.natural(v)), x)
        return signed_step(x, -uphill, self.step_size * share, center, self.radius)

    def _new(self, x: Tensor, seed: int) -> nn.Module:
        with torch.no_grad():
            logits = self.net(x[:1])
        with seeded(seed):
            return LogitDiscriminator(logits.shape[1]).to(logits)
