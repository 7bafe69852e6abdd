"""TENT, which adapts from batch to batch, and normalization by the statistics of the batch."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.transductive.dent import Objective, entropy
from saddlepoint.zoo.transductive.normalization import AdjustableNet, BatchNorm
from saddlepoint.zoo.transductive.optimizers import Adam, Updated

_ADAM = Adam()


class TENT(Defense):
    """Normalizes by the statistics of the batch and keeps adapting scale and shift.

    theta <- theta - Adam(d objective / d theta), `steps` times per batch, with the same theta for
    all rows. The batch is classified with the parameters before the last step, as in the released
    code, where one forward pass gives both the output and the gradient. Wang et al. 2021, Tent.
    Dropout is off.

    Args:
        net: A network with batch normalization.
        steps: Adaptation steps per batch, 0 or more.
        optimizer: The optimizer; Adam by default.
        objective: What adaptation minimizes; the entropy by default.
        episodic: Start every batch from the checkpoint. By default adaptation continues from batch
            to batch.

    Raises:
        ValueError: `steps` is negative, or the network has no batch normalization to adapt.
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
        self.net = AdjustableNet(net, BatchNorm)
        start = self.net.parameters
        self.predicting = start
        self.current = Updated(start, optimizer.start(start))

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        """Return the defense after adapting to x [N, ...]."""
        differentiated = torch.is_grad_enabled() and x.requires_grad
        predicting = self.current.parameters
        (parameters, moments) = self.current
        with torch.enable_grad():
            for _ in range(self.steps):
                if not _has_graph(parameters, differentiated):
                    parameters = tuple(p.detach().requires_grad_() for p in parameters)
                predicting = parameters
                loss = self.objective(self.net(x if differentiated else x.detach(), parameters))
                grads = torch.autograd.grad(
                    loss, parameters, create_graph=differentiated, materialize_grads=True
                )
                parameters, moments = self.optimizer.step(parameters, grads, moments)
        adapted = copy.copy(self)
        adapted.predicting = predicting if differentiated else tuple(p.detach() for p in predicting)
        if self.memory == "stream":
            adapted.current = Updated(
                parameters if differentiated else tuple(p.detach() for p in parameters), moments
            )
        return adapted

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output with the current parameters and the statistics of x."""
        return Trace((View("final", self.net(x, self.predicting)),))


class BatchStatistics(Defense):
    """Normalizes by the statistics of the batch, mixed with those of training.

    mean = (prior mean_train + N mean_batch) / (prior + N), and the same for the variance (Schneider
    et al. 2020, Improving robustness against common corruptions by covariate shift adaptation).
    Nothing else adapts. The gradient of an attack flows through the statistics.

    Args:
        net: A network with batch normalization.
        prior: The statistics of training count as this many examples, 0 or more.

    Raises:
        ValueError: `prior` is negative, or the network has no batch normalization to adapt.
    """

    coupled = True

    def __init__(self, net: nn.Module, *, prior: float = 0.0) -> None:
        if prior < 0:
            raise ValueError(
                f"the statistics of training count as at least 0 examples, got prior={prior}."
            )
        self.net = AdjustableNet(net, lambda source: BatchNorm(source, prior))
        self.prior = prior
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return the output with the mixed statistics."""
        return Trace((View("final", self.net(x, self.net.parameters)),))


def _has_graph(parameters: tuple[Tensor, ...], differentiated: bool) -> bool:
    """Return whether the parameters already depend on the batch that is differentiated."""
    return differentiated and all(p.requires_grad for p in parameters)
