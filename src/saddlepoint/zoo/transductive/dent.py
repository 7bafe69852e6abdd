"""DENT: adapts scales and shifts of batch normalization to each test example."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.phrases import count
from saddlepoint.training.loop import seeded_generator
from saddlepoint.zoo.transductive.normalization import AdjustableNet, Norm
from saddlepoint.zoo.transductive.optimizers import Adam, AdaMod

Objective = Callable[[Tensor], Tensor]  # logits [N, C] -> the number that adaptation minimizes


def entropy(logits: Tensor) -> Tensor:
    """Return mean_i H(p_i), which rewards confidence (Wang et al. 2021, Tent, Sec. 3).

    Args:
        logits: [N, C].
    """
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def information(logits: Tensor) -> Tensor:
    """Return mean_i H(p_i) - H(mean_i p_i), with log(p + 1e-5) for both entropies.

    The first term rewards confidence; the second rewards equally frequent classes. Chen et al. 2022
    write sums over the batch instead of means (Eq. 8), which gives the second term another weight;
    this is what the released code computes. An attacker exploits the second term with batches that
    are sorted by label.

    Args:
        logits: [N, C].
    """
    p = logits.softmax(1)
    marginal = p.mean(0)
    return -(p * (p + 1e-5).log()).sum(1).mean() + (marginal * (marginal + 1e-5).log()).sum()


_ADAMOD = AdaMod()


class DENT(Defense):
    """Adapts scale and shift of every batch normalization to each example of a batch.

    theta_i <- theta_i - AdaMod(d objective / d theta_i), `steps` times from the checkpoint, where
    theta_i = (gamma_i, beta_i) belongs to example i. Statistics are those of training. The
    parameters are discarded after the batch. Wang et al. 2021, Fighting gradients with gradients.
    The defaults are the DENT+ that Chen et al. 2022 (App. A.3) evaluate. With `objective=entropy`
    the examples adapt independently of each other.

    Before it adapts, the defense is the static network. Dropout is on during adaptation, as in the
    released code, and draws from the random keys of the batch. The defense is therefore random if
    the network has dropout. `Direct(respond=True)` differentiates through all steps.

    Args:
        net: A network with batch normalization.
        steps: Adaptation steps, 0 or more.
        optimizer: The optimizer; AdaMod with DENT's settings by default.
        objective: What adaptation minimizes; `information` by default.

    Raises:
        ValueError: `steps` is negative, or the network has no batch normalization to adapt.
    """

    memory = "batch"

    def __init__(
        self,
        net: nn.Module,
        *,
        steps: int = 6,
        optimizer: Adam = _ADAMOD,
        objective: Objective = information,
    ) -> None:
        if steps < 0:
            raise ValueError(f"DENT adapts in at least 0 steps, got steps={steps}.")
        self.steps = steps
        self.optimizer = optimizer
        self.objective = objective
        self.static = net
        self.predicting = AdjustableNet(net, Norm)
        self.adapting = AdjustableNet(net, Norm, training=True)
        self.random = self.adapting.random and steps > 0

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        """Return the network with its own parameters for each row of x [N, ...]."""
        differentiated = torch.is_grad_enabled() and x.requires_grad
        parameters = tuple(p.expand(len(x), -1) for p in self.predicting.parameters)  # [N, C] each
        moments = self.optimizer.start(parameters)
        with torch.enable_grad(), self._dropout_generator(x, ctx):
            for _ in range(self.steps):
                # Without a gradient in x, no graph is needed from one step to the next.
                if not (differentiated and moments.steps):
                    parameters = tuple(p.detach().requires_grad_() for p in parameters)
                loss = self.objective(
                    self.adapting(x if differentiated else x.detach(), parameters)
                )
                grads = torch.autograd.grad(
                    loss, parameters, create_graph=differentiated, materialize_grads=True
                )
                parameters, moments = self.optimizer.step(parameters, grads, moments)
        adapted = parameters if differentiated else tuple(p.detach() for p in parameters)
        return AdaptedRows(self.predicting, adapted, self.static)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output of the static network."""
        return Trace((View("final", self.predicting(x, self.predicting.parameters)),))

    def _dropout_generator(self, x: Tensor, ctx: Context) -> AbstractContextManager[None]:
        """Seed torch's global generator from the batch's keys, if the defense is random."""
        return seeded_generator(ctx.shared_seed(), x.device) if self.random else nullcontext()


class AdaptedRows(Defense):
    """A network with separate scales and shifts for each row of the batch it adapted to.

    Args:
        net: The network as a function of input and parameters.
        parameters: Scales and shifts, [N, C] each.
        static: The network without adaptation.
    """

    def __init__(
        self, net: AdjustableNet, parameters: tuple[Tensor, ...], static: nn.Module | None
    ) -> None:
        self.net = net
        self.parameters = parameters
        self.static = static

    def restrict(self, rows: Tensor) -> Defense:
        """Return the defense for some rows of the batch."""
        return AdaptedRows(self.net, tuple(p[rows] for p in self.parameters), self.static)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output for x, which must have one row per adapted row.

        Raises:
            ValueError: The number of rows is different.
        """
        if len(x) != len(self.parameters[0]):
            raise ValueError(
                f"this network adapted to a batch of {count(len(self.parameters[0]), 'example')}, "
                f"row by row, and received {len(x)}. Select the same rows with `restrict(rows)`, "
                "or adapt to the new batch."
            )
        return Trace((View("final", self.net(x, self.parameters)),))
