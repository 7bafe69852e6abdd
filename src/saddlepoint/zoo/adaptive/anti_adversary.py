"""Anti-adversary: make the net surer of what it says already."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.inner import Ascent, Direction, Purifier, shown, walk


class AntiAdversary(Purifier):
    """x_{t+1} = x_t - step sign(grad CE(f(x_t), y)) with y = argmax_k f(x)_k, then f(x_T).

    Alfarra et al. 2022; Croce et al. 2022, Sec. 3.8. There is no projection, neither onto a ball nor into the box, as in the
    released code; its step is in units of the net's input, normalized or not. Raising the confidence in an answer does not change
    it, so for small steps labels are those of the net and only scores and gradients are hidden.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        steps: int = 2,
        step_size: float = 0.15,
        direction: Direction = torch.sign,
    ) -> None:
        super().__init__(net, steps)
        self.ascent = Ascent(step_size, direction=direction)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        plain = self.net(x)
        label = plain.argmax(1)

        def confidence(v: Tensor) -> Tensor:
            return -cross_entropy(self.net(v), label)

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.ascent(confidence, v, x)

        def answer(v: Tensor) -> Tensor:
            answered: Tensor = plain if v is x else self.net(v)
            return answered

        return shown(walk(step, x, self.steps, ctx), answer, self.steps, ctx)
