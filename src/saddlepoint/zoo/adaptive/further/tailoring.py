"""Tailoring: adapt the network to each test image by an unsupervised loss before it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient
from saddlepoint.zoo.adaptive.validation import require_eval_mode
from saddlepoint.zoo.transductive.normalization import AdjustableNet, Norm


class Tailoring(Defense):
    """Adapt scales and shifts of batch normalization to each image, then classify it.

    theta_i <- theta_i - rate grad L(theta_i),
    L(theta_i) = mean_j KL(p_theta(x_i) || p_theta(x_i + noise n_ij)),  n_ij ~ N(0, I).

    Alet et al. 2021: an unsupervised loss is minimized at prediction time for each image, with
    conditional normalization, so that a batch of images adapts in parallel and independently. For
    robustness their loss compares predictions at the image and around it. The view "tailor/t" is
    the network after t steps, and "tailor/0" the static network. Each step passes through the site
    "tailor", where the state is the parameters and not the image: under `BPDA()` they are
    constants. The noise is drawn once per image, and is the same in all steps. Number of steps,
    rate and noise are ours; their networks are trained for this adaptation.

    Args:
        net: Classifier with batch normalization, in eval mode.
        steps: Number of gradient steps.
        rate: Step size.
        noise: Standard deviation, in units of the input.
        samples: Noisy copies of each image.

    Raises:
        ValueError: If an argument is out of range, the network is in training mode, or it has no
            batch normalization.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        steps: int = 1,
        rate: float = 0.1,
        noise: float = 0.1,
        samples: int = 4,
    ) -> None:
        if steps < 0 or rate <= 0 or noise <= 0 or samples < 1:
            raise ValueError(
                "Tailoring needs steps >= 0, rate > 0, noise > 0 and samples >= 1, got "
                f"steps={steps}, rate={rate}, noise={noise} and samples={samples}."
            )
        require_eval_mode(net, role="network", owner="Tailoring")
        self.net = net
        self.steps = steps
        self.rate = rate
        self.noise = noise
        self.samples = samples
        self.static = net
        self.random = steps > 0
        self.adjustable = AdjustableNet(net, Norm)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Adapt to every image of x and return the logits after every step."""
        start = [p.expand(len(x), -1) for p in self.adjustable.parameters]  # [N, C] each
        state = torch.cat(start, dim=1)
        shape = tuple(x.shape[1:])
        draws = [ctx.randn(*shape, dtype=x.dtype) for _ in range(self.samples if self.steps else 0)]
        views = []
        for t in range(self.steps + 1):
            if t:
                state = ctx.through("tailor", partial(self._step, x, draws), state)
            if t == self.steps or ctx.keeps(f"tailor/{t}"):
                views.append(View(f"tailor/{t}", self._logits(x, state)))
        return Trace(tuple(views))

    def loss(self, x: Tensor, draws: Sequence[Tensor], state: Tensor) -> Tensor:
        """Return L [N] for images x [N, ...], noise [N, ...] per sample and parameters [N, P]."""
        clean = self._logits(x, state).log_softmax(1)
        noisy = [self._logits(x + self.noise * n, state).log_softmax(1) for n in draws]
        losses = [functional.kl_div(q, clean, reduction="none", log_target=True) for q in noisy]
        return torch.stack(losses).sum(2).mean(0)

    def _step(self, x: Tensor, draws: Sequence[Tensor], state: Tensor) -> Tensor:
        return state - self.rate * input_gradient(lambda s: self.loss(x, draws, s), state)

    def _logits(self, x: Tensor, state: Tensor) -> Tensor:
        ends = list(accumulate(len(p) for p in self.adjustable.parameters))[:-1]
        return self.adjustable(x, torch.tensor_split(state, ends, dim=1))
