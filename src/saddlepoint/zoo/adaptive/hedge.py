"""Hedge defense: attack every class at once, and let the wrong one give way first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Ascent, Direction, Purifier, shown, walk


class HedgeDefense(Purifier):
    """argmax_d sum_k CE(f(x + d), k) with ||d||_inf <= radius and x + d in the box, then f(x + d).

    Wu et al. 2021; Croce et al. 2022, Sec. 3.4, Eq. 3: signed ascent from a point drawn uniformly from the ball. The draw itself is
    not clipped into the box, as in the code released with the latter; the steps are.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        radius: float = 8 / 255,  # in units of the input
        steps: int = 20,
        step_size: float = 4 / 255,
        box: tuple[float, float] = (0.0, 1.0),
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        self.radius = radius
        self.ascent = Ascent(step_size, Linf(radius, box=box), direction)
        self.random = steps > 0

    def hedge(self, x: Tensor) -> Tensor:
        """[N] sum_k CE(z, k) = K logsumexp(z) - sum_k z_k."""
        logits = self.net(x)
        hedged: Tensor = logits.shape[1] * logits.logsumexp(1) - logits.sum(1)
        return hedged

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(t: int, v: Tensor) -> Tensor:
            start = v + self.radius * (2 * ctx.rand_like(v) - 1) if t == 0 else v
            return self.ascent(self.hedge, start, x)

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)
