"""Relatives of DENT: TENT, which learns on and on, and normalization by the batch alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.transductive.dent import Objective, entropy
from saddlepoint.zoo.transductive.normalization import Adjustable, BatchNorm
from saddlepoint.zoo.transductive.optimizers import Adam, Learned

_ADAM = Adam()


class TENT(Defense):
    """Normalizes by the statistics of the batch, and goes on learning scale and shift, the same for all rows, from batch to batch.

    theta <- theta - Adam(d objective / d theta), `steps` times for each batch, which is answered by the parameters before the last
    step, as in the released code: one forward pass does both. Wang et al. 2021, Tent. With `episodic=True` every batch starts from
    the checkpoint. Dropout stays off.
    """

    coupled = True

    def __init__(
        self,
        net: nn.Module,
        *,
        steps: int = 1,
        optimizer: Adam = _ADAM,
        objective: Objective = entropy,
        episodic: bool = False,
    ) -> None:
        if steps < 0:
            raise ValueError(f"TENT adapts in at least 0 steps, got steps={steps}.")
        self.steps = steps
        self.optimizer = optimizer
        self.objective = objective
        self.static = net
        self.memory = "batch" if episodic else "stream"
        self.net = Adjustable(net, BatchNorm)
        start = self.net.parameters
        self.answering = start
        self.learned = Learned(start, optimizer.start(start))

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        through = torch.is_grad_enabled() and x.requires_grad
        answering = self.learned.parameters
        (parameters, moments) = self.learned
        with torch.enable_grad():
            for _ in range(self.steps):
                parameters = (
                    parameters
                    if _graphed(parameters, through)
                    else tuple(p.detach().requires_grad_() for p in parameters)
                )
                answering = parameters
                loss = self.objective(self.net(x if through else x.detach(), parameters))
                grads = torch.autograd.grad(
                    loss, parameters, create_graph=through, materialize_grads=True
                )
                parameters, moments = self.optimizer.step(parameters, grads, moments)
        adapted = copy.copy(self)
        adapted.answering = answering if through else tuple(p.detach() for p in answering)
        if self.memory == "stream":
            adapted.learned = Learned(
                parameters if through else tuple(p.detach() for p in parameters), moments
            )
        return adapted

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.net(x, self.answering)),))


class BatchStatistics(Defense):
    """Normalizes by the statistics of the batch it is asked about, mixed with those of training; learns nothing else.

    mean = (prior mean_train + N mean_batch) / (prior + N), and so the variance (Schneider et al. 2020, Improving robustness against
    common corruptions by covariate shift adaptation). An attack differentiates through the statistics.
    """

    coupled = True

    def __init__(self, net: nn.Module, *, prior: float = 0.0) -> None:
        if prior < 0:
            raise ValueError(
                f"statistics of training count as at least 0 examples, got prior={prior}."
            )
        self.net = Adjustable(net, lambda source: BatchNorm(source, prior))
        self.prior = prior
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.net(x, self.net.parameters)),))


def _graphed(parameters: tuple[Tensor, ...], through: bool) -> bool:
    """Do these parameters already depend on the batch that is differentiated?"""
    return through and all(p.requires_grad for p in parameters)
