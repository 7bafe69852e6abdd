"""Purification by an equilibrium decoder whose state and input are optimized together."""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.fitting import Batch, Phase, minimize, seeded
from saddlepoint.zoo.adaptive.purification import Purifier
from saddlepoint.zoo.adaptive.validation import require_eval_mode

_TRAINING = Phase(epochs=20, batch_size=128, rate=1e-3)


class EquilibriumDecoder(nn.Module):
    """A decoder with a fixed point: z = tanh(W z + U u + b), image = sigmoid(V z + c).

    W is scaled so that its largest row sum is at most `contraction` < 1; iterations converge.

    Args:
        shape: Shape [C, H, W] of the image.
        code: Number of inputs u.
        width: Number of states z.
        contraction: Bound of the infinity norm of W.
    """

    def __init__(
        self, shape: tuple[int, ...], *, code: int = 16, width: int = 64, contraction: float = 0.8
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.recurrent = nn.Linear(width, width, bias=False)
        self.inputs = nn.Linear(code, width)
        self.outputs = nn.Linear(width, math.prod(self.shape))
        self.contraction = contraction

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Return f(z, u) [N, width]."""
        rows = self.recurrent.weight.abs().sum(1, keepdim=True)  # [width, 1]
        weight = self.recurrent.weight * (self.contraction / rows.clamp(min=self.contraction))
        return torch.tanh(z @ weight.T + self.inputs(u))

    def decode(self, z: Tensor) -> Tensor:
        """Return images [N, *shape]."""
        return torch.sigmoid(self.outputs(z)).view(len(z), *self.shape)


class JointState(NamedTuple):
    """Variables of the joint system."""

    z: Tensor  # [N, width] state
    adjoint: Tensor  # [N, width] mu
    u: Tensor  # [N, code] input


class JointOptimization(Purifier):
    """Replace the image by the nearest output of an equilibrium decoder, then classify.

    min_u |D(z) - x|^2 / 2 + decay |u|^2 / 2  with  z = f(z, u).

    State, adjoint and input are iterated together, one evaluation of f per step:

    z <- f(z, u),  mu <- (df/dz)^T mu + dL/dz,  u <- u - rate ((df/du)^T mu + decay u).

    A fixed point of this system satisfies the optimality conditions. Gurumurthy et al. 2021 solve
    it by Anderson acceleration with a memory of 40 states; here the iteration is plain. The number
    of iterations is that of their released generative model of faces; the decoder and the rate are
    ours. The whole optimization is one step at the site `purify`; `purify/0` is the network on the
    image itself.

    Args:
        net: Classifier f: [N, C, H, W] -> [N, classes] in eval mode.
        decoder: The decoder in eval mode.
        iterations: Number of joint iterations.
        rate: Step size of u.
        decay: Weight of |u|^2.
    """

    def __init__(
        self,
        net: nn.Module,
        decoder: EquilibriumDecoder,
        *,
        iterations: int = 100,
        rate: float = 0.1,
        decay: float = 1e-3,
    ) -> None:
        super().__init__(net, 1)
        if iterations < 1 or rate <= 0 or decay < 0:
            raise ValueError(
                "JointOptimization needs iterations >= 1, rate > 0 and decay >= 0, got "
                f"iterations={iterations}, rate={rate} and decay={decay}."
            )
        require_eval_mode(decoder, role="decoder", owner="JointOptimization")
        self.decoder = decoder
        self.iterations = iterations
        self.rate = rate
        self.decay = decay

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the image and of its reconstruction."""
        return self.classify_iterates(lambda _, v: self.decoder.decode(self.solve(v).z), x, ctx)

    def solve(self, x: Tensor) -> JointState:
        """Return the variables after all iterations for images x [N, C, H, W]."""
        width = self.decoder.recurrent.in_features
        zeros = x.new_zeros(len(x), width)
        state = JointState(zeros, zeros, x.new_zeros(len(x), self.decoder.inputs.in_features))
        for _ in range(self.iterations):
            state = self.iterate(state, x)
        return state

    def iterate(self, state: JointState, x: Tensor) -> JointState:
        """Apply one joint iteration; an attacker's gradient passes through it."""
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views: the derivatives are partial, also where u was computed from z.
            z, u = (
                v.view_as(v) if recorded and v.requires_grad else v.detach().requires_grad_()
                for v in (state.z, state.u)
            )
            following = self.decoder.cell(z, u)
            loss = (self.decoder.decode(z) - x).square().sum() / 2
            (slope,) = torch.autograd.grad(loss, z, create_graph=recorded)
            through_z, through_u = torch.autograd.grad(
                following, (z, u), state.adjoint, create_graph=recorded
            )
            moved = u - self.rate * (through_u + self.decay * u)
            found = JointState(following, through_z + slope, moved)
        return found if recorded else JointState(*(v.detach() for v in found))

    def fit(self, x: Tensor, *, phase: Phase = _TRAINING, seed: int = 0) -> JointOptimization:
        """Train a copy of the decoder to reconstruct images; the network is unchanged.

        The inputs u of a minibatch are found by joint optimization and are then constants.

        Args:
            x: [M, C, H, W] training images.
            phase: Epochs, batch size and learning rate of Adam.
            seed: Seed of the minibatches.

        Returns:
            A new defense with the trained decoder.
        """
        decoder = copy.deepcopy(self.decoder)
        inner = self._with(decoder)
        optimizer = torch.optim.Adam(decoder.parameters(), phase.rate)

        def losses(batch: Batch) -> Tensor:
            images = x[batch.rows]
            with torch.no_grad():
                state = inner.solve(images)
            z = decoder.cell(state.z, state.u)
            return (decoder.decode(decoder.cell(z, state.u)) - images).square().flatten(1).mean(1)

        with seeded(seed):
            minimize(losses, optimizer, len(x), phase, seed, x.device)
        return self._with(decoder.eval())

    def _with(self, decoder: EquilibriumDecoder) -> JointOptimization:
        return JointOptimization(
            self.net, decoder, iterations=self.iterations, rate=self.rate, decay=self.decay
        )
