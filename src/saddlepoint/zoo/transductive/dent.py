"""DENT: scales and shifts of batch normalization, one set for every example, fitted to the batch before it is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.transductive.normalization import Adjustable, Norm
from saddlepoint.zoo.transductive.optimizers import Adam, AdaMod

Objective = Callable[[Tensor], Tensor]  # logits [N, C] -> the number that adaptation makes small


def entropy(logits: Tensor) -> Tensor:
    """mean_i H(p_i): answer with confidence (Wang et al. 2021, Tent, Sec. 3)."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()


def information(logits: Tensor) -> Tensor:
    """mean_i H(p_i) - H(mean_i p_i), with log(p + 1e-5): answer with confidence, and with every class as often as any other.

    Chen et al. 2022 write sums over the batch instead of means (Eq. 8), which weighs the second term by another amount; this is
    what the released code computes. The second term is what a batch sorted by label turns against the defense.
    """
    p = logits.softmax(1)
    marginal = p.mean(0)
    return -(p * (p + 1e-5).log()).sum(1).mean() + (marginal * (marginal + 1e-5).log()).sum()


_ADAMOD = AdaMod()


class DENT(Defense):
    """Adapts scale and shift of every batch normalization to each example of a batch, and forgets them.

    theta_i <- theta_i - AdaMod(d objective / d theta_i), `steps` times from the checkpoint, theta_i = (gamma_i, beta_i) of example
    i; statistics stay those of training. Wang et al. 2021, Fighting gradients with gradients. The defaults are the DENT+ that Chen
    et al. 2022 (App. A.3) evaluate; with `objective=entropy` examples adapt each for itself.

    Before it adapts it is the static network. Dropout is on while it adapts, as in the released code, and draws from the batch's
    coins: a network with dropout makes a random defense. `Direct(respond=True)` differentiates through all steps.
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
        self.answering = Adjustable(net, Norm)
        self.learning = Adjustable(net, Norm, training=True)
        self.random = self.learning.random and steps > 0

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        """The network with parameters for each row of x."""
        through = torch.is_grad_enabled() and x.requires_grad
        parameters = tuple(p.expand(len(x), -1) for p in self.answering.parameters)  # [N, C] each
        moments = self.optimizer.start(parameters)
        with torch.enable_grad(), tossed(self.random, x, ctx):
            for _ in range(self.steps):
                # Without an attacker behind it, a step need not remember the one before.
                parameters = (
                    parameters
                    if through and moments.steps
                    else tuple(p.detach().requires_grad_() for p in parameters)
                )
                loss = self.objective(self.learning(x if through else x.detach(), parameters))
                grads = torch.autograd.grad(
                    loss, parameters, create_graph=through, materialize_grads=True
                )
                parameters, moments = self.optimizer.step(parameters, grads, moments)
        kept = parameters if through else tuple(p.detach() for p in parameters)
        return Dented(self.answering, kept, self.static)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.answering(x, self.answering.parameters)),))


class Dented(Defense):
    """A network with scales and shifts of its own for each row of the batch that it adapted to."""

    def __init__(
        self, net: Adjustable, parameters: tuple[Tensor, ...], static: nn.Module | None
    ) -> None:
        self.net = net
        self.parameters = parameters
        self.static = static

    def restrict(self, rows: Tensor) -> Defense:
        return Dented(self.net, tuple(p[rows] for p in self.parameters), self.static)

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        if len(x) != len(self.parameters[0]):
            raise ValueError(
                f"this network adapted to a batch of {len(self.parameters[0])} examples, row by row, and was asked about {len(x)}. "
                "Take the same rows of it with `restrict(rows)`, or adapt to the new batch."
            )
        return Trace((View("final", self.net(x, self.parameters)),))


@contextmanager
def tossed(random: bool, x: Tensor, ctx: Context) -> Iterator[None]:
    """Torch's own generator, seeded from the coins of the batch and put back; nothing, where nothing is drawn."""
    if not random:
        yield
        return
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        torch.manual_seed(ctx.shared_seed())
        yield
