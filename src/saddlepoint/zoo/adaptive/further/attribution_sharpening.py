"""Attribution guided sharpening: smooth an image along the attributions of a network."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient
from saddlepoint.zoo.adaptive.purification import Purifier
from saddlepoint.zoo.adaptive.validation import require_eval_mode


class AttributionSharpening(Purifier):
    """Move each pixel to a weighted mean of its neighbors, then classify.

    x_p <- sum_q w_pq x_q / sum_q w_pq,  w_pq = s_q exp(-|p - q|^2 / (2 reach^2) - |x_p - x_q|^2 /
    (2 bandwidth^2)), over the pixels q of a square window around p.

    This is the data sharpening of Choi & Hall 1999 on pixels as points of position and color, with
    weights s_q: the attribution of pixel q, which is the size of the gradient of the highest logit
    of a network that is not robust, divided by its mean over the image, plus `floor`. Perez Tobia
    et al. 2022. Only their abstract was at hand; the form of the weights and all defaults are ours.
    Attributions are computed once, at x. Each sharpening step passes through the site `purify`.

    Args:
        net: Classifier f: [N, C, H, W] -> [N, classes] in eval mode.
        guide: Network of the attributions in eval mode; default: `net`.
        steps: Number of sharpening steps.
        window: Side of the window in pixels, odd.
        reach: Standard deviation of the weights over positions, in pixels.
        bandwidth: Standard deviation of the weights over colors, in units of the input.
        floor: Added to the attributions, so that no pixel is left out.
    """

    def __init__(
        self,
        net: nn.Module,
        guide: nn.Module | None = None,
        *,
        steps: int = 2,
        window: int = 5,
        reach: float = 1.5,
        bandwidth: float = 0.1,
        floor: float = 0.1,
    ) -> None:
        super().__init__(net, steps)
        if window < 1 or window % 2 == 0 or reach <= 0 or bandwidth <= 0 or floor < 0:
            raise ValueError(
                "AttributionSharpening needs an odd window >= 1, reach > 0, bandwidth > 0 and "
                f"floor >= 0, got window={window}, reach={reach}, bandwidth={bandwidth} and "
                f"floor={floor}."
            )
        self.guide = guide or net
        require_eval_mode(self.guide, role="guide", owner="AttributionSharpening")
        self.window = window
        self.reach = reach
        self.bandwidth = bandwidth
        self.floor = floor

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Sharpen x and return the logits at every iterate."""
        weights = self.attributions(x) if self.steps else x[:, :1]

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.sharpen(v, weights)

        return self.classify_iterates(step, x, ctx)

    def attributions(self, x: Tensor) -> Tensor:
        """Return the weight [N, 1, H, W] of each pixel of x [N, C, H, W]."""
        grad = input_gradient(lambda v: self.guide(v).amax(1), x)
        size = grad.abs().sum(1, keepdim=True)
        mean = size.mean((2, 3), keepdim=True)
        return size / mean.clamp(min=torch.finfo(x.dtype).tiny) + self.floor

    def sharpen(self, x: Tensor, weights: Tensor) -> Tensor:
        """Apply one step to x [N, C, H, W] with weights [N, 1, H, W]."""
        colors = self._neighbors(x)  # [N, C, K, H, W]
        weight = self._neighbors(weights, inside=True)  # [N, 1, K, H, W], 0 outside of the image
        distance = (colors - x[:, :, None]).square().sum(1, keepdim=True)
        offset = torch.arange(self.window, device=x.device, dtype=x.dtype) - self.window // 2
        place = (offset[:, None].square() + offset.square()).flatten()  # [K]
        exponent = distance / (2 * self.bandwidth**2)
        exponent = exponent + place[:, None, None] / (2 * self.reach**2)
        weight = weight * (-exponent).exp()
        total = weight.sum(2).clamp(min=torch.finfo(x.dtype).tiny)
        return (weight * colors).sum(2) / total

    def _neighbors(self, x: Tensor, *, inside: bool = False) -> Tensor:
        """Return the window around each pixel, [N, C, K, H, W]; `inside`: zeros beyond the edge."""
        edge = self.window // 2
        pad = partial(functional.pad, pad=(edge, edge, edge, edge))
        padded = pad(x) if inside else pad(x, mode="replicate")
        patches = functional.unfold(padded, self.window)  # [N, C K, H W]
        return patches.view(len(x), x.shape[1], self.window**2, *x.shape[2:])
