"""Hedge defense: increase the cross-entropy to all classes at once, then classify."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.gradient_steps import AscentStep, Direction
from saddlepoint.zoo.adaptive.purification import Purifier


class HedgeDefense(Purifier):
    """Maximize the cross-entropy to all classes around x, then classify the maximizer.

    d = argmax_d sum_k CE(f(x + d), k)  with  ||d||_inf <= radius and x + d in the box.

    Wu et al. 2021; Croce et al. 2022, Sec. 3.4, Eq. 3. The maximization is signed gradient ascent
    from a point drawn uniformly from the ball. As in the code released by Croce et al., the
    random start is not clipped to the box, but every step is.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        radius: Linf radius of the purification, in units of the input.
        steps: Number of ascent steps.
        step_size: Length of a step, in units of the input.
        box: Lower and upper bound of the input.
        direction: Maps the gradient to the step direction.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        radius: float = 8 / 255,
        steps: int = 20,
        step_size: float = 4 / 255,
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        self.radius = radius
        self.ascent = AscentStep(step_size, Linf(radius, box=box), direction)
        self.random = steps > 0

    def hedge(self, x: Tensor) -> Tensor:
        """Return the objective [N]: sum_k CE(z, k) = K logsumexp(z) - sum_k z_k, z = f(x)."""
        logits = self.net(x)
        objective: Tensor = logits.shape[1] * logits.logsumexp(1) - logits.sum(1)
        return objective

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits at every iterate."""

        def step(t: int, v: Tensor) -> Tensor:
            start = v + self.radius * (2 * ctx.rand_like(v) - 1) if t == 0 else v
            return self.ascent(self.hedge, start, x)

        return self.classify_iterates(step, x, ctx)
