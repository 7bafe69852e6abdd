"""Anti-adversary: move the input to increase the confidence in the predicted class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.gradient_steps import AscentStep, Direction
from saddlepoint.zoo.adaptive.purification import Purifier, iterates, purification_trace


class AntiAdversary(Purifier):
    """Increase the confidence in the predicted class by signed gradient steps, then classify.

    x_{t+1} = x_t - step_size sign(grad CE(f(x_t), y)) with y = argmax_k f(x)_k; output f(x_T).

    Alfarra et al. 2022; Croce et al. 2022, Sec. 3.8. As in the released code, there is no
    projection, neither onto a ball nor into the box. A higher confidence in the predicted class
    does not change the prediction. For small steps the labels are therefore those of the static
    network, and the defense only hides scores and gradients.

    Args:
        net: Classifier f: [N, ...] -> [N, C] in eval mode.
        steps: Number of descent steps.
        step_size: Length of a step, in units of the network's input, normalized or not.
        direction: Maps the gradient to the step direction.
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
        self.ascent = AscentStep(step_size, direction=direction)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Purify x and return the logits at every iterate."""
        static_logits = self.net(x)
        label = static_logits.argmax(1)

        def confidence(v: Tensor) -> Tensor:
            return -cross_entropy(self.net(v), label)

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.ascent(confidence, v, x)

        def classify(v: Tensor) -> Tensor:
            logits: Tensor = static_logits if v is x else self.net(v)
            return logits

        states = iterates(step, x, self.steps, ctx)
        return purification_trace(states, classify, self.steps, ctx)
