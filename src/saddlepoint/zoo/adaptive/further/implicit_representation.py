"""LINAC: classify the activations of a small network that was fitted to the image."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.gradient_steps import adam_step, initial_adam_state, input_gradient
from saddlepoint.zoo.adaptive.validation import require_eval_mode


class ImplicitRepresentation(Defense):
    """Fit a network from pixel positions to colors, then classify its hidden activations.

    theta = argmin_theta mean_p |g_theta(p) - x_p|^2 by Adam from initial weights that a private key
    determines, g_theta(p) = W_2 relu(W_1 relu(W_0 phi(p))), phi(p) = sin and cos of 2^k pi p. The
    classifier sees relu(W_1 relu(W_0 phi(p))) at every pixel: lossy implicit network activation
    coding (Rusu et al. 2022). All pixels are used in each step, where the paper has minibatches of
    them; sizes and rates are ours.

    The fit passes through the site "encode". Its output has other channels than the image, so BPDA
    needs a surrogate of its own. There is no static model on images: train the classifier on
    `represent(x)`.

    Args:
        net: Classifier [N, width, H, W] -> [N, classes] of representations, in eval mode.
        key: Seed of the initial weights.
        width: Number of hidden units.
        frequencies: Number of frequencies in phi.
        steps: Number of steps of Adam.
        rate: Learning rate of Adam.
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        key: int,
        width: int = 32,
        frequencies: int = 5,
        steps: int = 50,
        rate: float = 1e-2,
    ) -> None:
        if width < 1 or frequencies < 1 or steps < 0 or rate <= 0:
            raise ValueError(
                "ImplicitRepresentation needs width >= 1, frequencies >= 1, steps >= 0 and "
                f"rate > 0, got width={width}, frequencies={frequencies}, steps={steps} and "
                f"rate={rate}."
            )
        require_eval_mode(net, role="network", owner="ImplicitRepresentation")
        self.net = net
        self.key = key
        self.width = width
        self.frequencies = frequencies
        self.steps = steps
        self.rate = rate

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the representation."""
        return Trace((View("final", self.net(ctx.through("encode", self.represent, x))),))

    def represent(self, x: Tensor) -> Tensor:
        """Return the hidden activations [N, width, H, W] of the networks fitted to x [N, ...]."""
        state = initial_adam_state(self._initial_weights(x))
        for t in range(1, self.steps + 1):
            grad = input_gradient(lambda w: self.error(x, w), state[:, 0])
            state = adam_step(state, grad, t, self.rate)
        hidden, _ = self._run(x, state[:, 0])
        return hidden.transpose(1, 2).reshape(len(x), self.width, *x.shape[2:])

    def error(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the mean squared error [N] of networks with weights [N, P] on x [N, C, H, W]."""
        _, colors = self._run(x, weights)
        return (colors - x.flatten(2).transpose(1, 2)).square().mean((1, 2))

    def _shapes(self, channels: int) -> tuple[tuple[int, int], ...]:
        inputs = 4 * self.frequencies
        return (inputs, self.width), (self.width, self.width), (self.width, channels)

    def _initial_weights(self, x: Tensor) -> Tensor:
        """Return weights [N, P] with variance 2 / fan-in, the same for every image."""
        keys = Keys.of(self.key, torch.zeros(1, dtype=torch.int64, device=x.device))
        layers = [
            math.sqrt(2 / shape[0]) * keys.fold_in(k).normal(shape, x.dtype).flatten(1)
            for k, shape in enumerate(self._shapes(x.shape[1]))
        ]
        return torch.cat(layers, dim=1).expand(len(x), -1)

    def _run(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden activations [N, H W, width] and colors [N, H W, C]."""
        shapes = self._shapes(x.shape[1])
        ends = list(accumulate(math.prod(shape) for shape in shapes))[:-1]
        parts = torch.tensor_split(weights, ends, dim=1)
        first, second, third = (
            part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)
        )
        hidden = ((self._positions(x) @ first).relu() @ second).relu()
        return hidden, hidden @ third

    def _positions(self, x: Tensor) -> Tensor:
        """Return phi(p) [H W, 4 frequencies] for positions p in [-1, 1]^2."""
        axes = [torch.linspace(-1, 1, n, dtype=x.dtype, device=x.device) for n in x.shape[2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # [H W, 2]
        scale = math.pi * 2 ** torch.arange(self.frequencies, dtype=x.dtype, device=x.device)
        angles = (grid[:, :, None] * scale).flatten(1)
        return torch.cat([angles.sin(), angles.cos()], dim=1)
