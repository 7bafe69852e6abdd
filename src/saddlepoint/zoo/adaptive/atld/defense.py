"""ATLD with inference manifold transformation as a defense."""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.atld.discriminator import LogitDiscriminator
from saddlepoint.zoo.adaptive.atld.training import LatentTraining
from saddlepoint.zoo.adaptive.fitting import seeded
from saddlepoint.zoo.adaptive.gradient_steps import gradient_sign, projected_step
from saddlepoint.zoo.adaptive.validation import require_eval_mode, require_labeled_data

_TRAINING = LatentTraining()
_UNCERTAIN = (0.3, 0.7)  # half a step is taken if the probability of "natural" is between these


class ATLD(Defense):
    """Move x toward what a discriminator of logits predicts as "natural", then classify.

    x_{t+1} = project(x_t - m step_size sign(grad BCE(D(f(x_t)), 1)));  output f(x_steps).

    The discriminator D predicts from the logits whether an image is natural. m is 1/2 where its
    probability is between 0.3 and 0.7, and 1 elsewhere. This is the inference with manifold
    transformation of Qian et al. 2021 (Croce et al. 2022, A.1, Eq. 10). The projection is onto the
    Linf ball around x and [0, 1]. Lengths are in units of pixels in [0, 1]; the released 16/255 is
    for [-1, 1]. With the single step of the paper only the bounds 0 and 1 are active.

    The view "imt/t" is the network at x_t, so "imt/0" is the static network. Each step passes
    through the site "imt". The sign has a zero derivative, so the exact gradient differs from
    `BPDA()` only where a pixel ends at 0 or 1. BCE is computed from the logit: its gradient does
    not round to zero where the sigmoid of the released code saturates.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        discriminator: Maps logits [N, C] to a `DiscriminatorOutput`; None: created by `fit`.
        steps: Number of steps.
        step_size: Length of a step, in units of the input.
        radius: Linf radius around x, in units of the input.
    """

    def __init__(
        self,
        net: nn.Module,
        discriminator: nn.Module | None = None,
        *,
        steps: int = 1,
        step_size: float = 8 / 255,
        radius: float = 8 / 255,
    ) -> None:
        if steps < 0 or step_size <= 0 or radius <= 0:
            raise ValueError(
                "ATLD needs steps >= 0, step_size > 0 and radius > 0, "
                f"got steps={steps}, step_size={step_size}, radius={radius}."
            )
        require_eval_mode(net, role="network", owner="ATLD")
        self.net = net
        self.discriminator = discriminator
        self.static = net
        self.steps = steps
        self.step_size = step_size
        self.radius = radius

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Move x and return the logits at every iterate."""
        views = [View("imt/0", self.net(x))] if ctx.keeps("imt/0") or not self.steps else []
        v = x
        for t in range(1, self.steps + 1):
            v = ctx.through("imt", partial(self._step, x), v)
            if ctx.keeps(f"imt/{t}") or t == self.steps:
                views.append(View(f"imt/{t}", self.net(v)))
        return Trace(tuple(views))

    def fit(
        self, x: Tensor, y: Tensor, *, training: LatentTraining = _TRAINING, seed: int = 0
    ) -> ATLD:
        """Train copies of the network and the discriminator against each other.

        Args:
            x: [M, ...] training images.
            y: [M] labels.
            training: Settings of the training.
            seed: Seed of the minibatches, the random starts and the initial weights.

        Returns:
            A new defense with the trained network and discriminator.
        """
        require_labeled_data(x, y)
        net = copy.deepcopy(self.net)
        if self.discriminator is None:
            discriminator = self._new_discriminator(x, seed)
        else:
            discriminator = copy.deepcopy(self.discriminator)
        training.run(net, discriminator, x, y, seed)
        return ATLD(
            net, discriminator, steps=self.steps, step_size=self.step_size, radius=self.radius
        )

    def natural_logit(self, x: Tensor) -> Tensor:
        """Return the discriminator's log-odds [N] that the images x are natural.

        Raises:
            RuntimeError: If there is no discriminator yet.
        """
        if self.discriminator is None:
            raise RuntimeError(
                "ATLD has no discriminator yet. Call fit: ATLD(net).fit(x, y), "
                "or pass one: ATLD(net, discriminator)."
            )
        logit: Tensor = self.discriminator(self.net(x)).natural_logit
        return logit

    def _step(self, center: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            probability = self.natural_logit(x).sigmoid()
        low, high = _UNCERTAIN
        scale = torch.where((probability > low) & (probability < high), 0.5, 1.0).to(x)
        sign = gradient_sign(lambda v: softplus(-self.natural_logit(v)), x)
        return projected_step(x, -sign, self.step_size * scale, center, self.radius)

    def _new_discriminator(self, x: Tensor, seed: int) -> nn.Module:
        with torch.no_grad():
            logits = self.net(x[:1])
        with seeded(seed):
            return LogitDiscriminator(logits.shape[1]).to(logits)
