"""The inner maximization of adversarial training: PGD on the network being trained, which it leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.gradients import Backprop, Evaluation, ObjectiveFunction, ValueAndGradient
from saddlepoint.rng import Keys
from saddlepoint.training.multi_exit_view import MultiExitView


def craft(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    space: Ball,
    keys: Keys,
    attack: PGD,
    *,
    loss: Loss = cross_entropy,
    tau: int | None = None,
) -> Tensor:
    """The last point of PGD; a row stops early, `tau` steps after it is first answered wrongly, if `tau` is given.

    An evaluation keeps the best point visited; training uses the last one, as Madry et al. 2018 do: no pass is needed to judge it.
    Of a network with several exits the mean of the losses is attacked: the average attack.
    The network answers in eval mode, so that its running statistics see no half-made adversaries; every module returns to the mode
    it was in, and no parameter's gradient is touched.
    """
    with evaluating(net):
        estimator = _Latest(len(x), attack.steps if tau is None else tau, x.device)
        objective = AttackObjective([MultiExitView(net)], y, loss, mean_of_losses)
        oracle = Oracle(
            objective, estimator, Meter.of(len(x)), torch.arange(len(x)), keys.fold_in(1)
        )
        return attack(oracle, x, space, keys.fold_in(2)).max_loss_point


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """The network in eval mode; afterwards each module in its own mode again, also those that were frozen before."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _Latest:
    """Backprop that values a point by how late it came, and gives no slope to rows that are done.

    PGD keeps the point of highest value, hence its last one, and a row without slope stays where it is. A row is done when it is
    answered wrongly and has already spent `tau` steps while it was (Zhang et al. 2020, early-stopped PGD).
    """

    cost = 1
    gradient_cost = (1, 1)

    def __init__(self, rows: int, tau: int, device: torch.device) -> None:
        self._looks = 0
        self._left = torch.full((rows,), tau, device=device)

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        (value, wrong), grad = Backprop().value_and_grad(objective, x, keys)
        done = wrong & (self._left == 0)
        self._left = torch.where(wrong & ~done, self._left - 1, self._left)
        self._looks += 1
        late = Evaluation(torch.full_like(value, self._looks), torch.zeros_like(wrong))
        return ValueAndGradient(late, torch.where(per_example(done, x), 0.0, grad))

    def evaluate(self, objective: ObjectiveFunction, x: Tensor, keys: Keys) -> Evaluation:  # noqa: ARG002
        """The last point is the one that is kept, whatever the network thinks of it."""
        return Evaluation(
            x.new_full((len(x),), torch.inf), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        )
