"""The inner maximization of adversarial training: PGD on the network that is being trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import mean_of_losses
from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import eval_mode
from saddlepoint.gradients import (
    Backprop,
    Estimator,
    Evaluation,
    ObjectiveFunction,
    ValueAndGradient,
)
from saddlepoint.rng import Keys
from saddlepoint.training.multi_exit_view import MultiExitView


def adversarial_examples(
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
    """Return the last point of PGD for every example.

    An evaluation keeps the best point visited. Training uses the last one, as Madry et al. 2018 do,
    because no extra forward pass is needed to evaluate it. On a network with several exits the mean
    of the losses is attacked: the average attack.

    The network runs in eval mode, so that its running statistics do not include intermediate
    points. Afterwards every module is in its previous mode, and no `.grad` has changed.

    Args:
        net: The network, [N, ...] -> [N, C], or one [N, C] per exit.
        x: Clean examples [N, ...].
        y: Labels [N].
        space: The perturbation set.
        keys: Random keys [N].
        attack: The attack.
        loss: The loss to maximize; the cross-entropy by default.
        tau: Stop an example `tau` steps after it is first misclassified. By default no example
            stops early.

    Returns:
        The adversarial examples [N, ...].
    """
    with eval_mode(net):
        estimator = _LastPoint(len(x), attack.steps if tau is None else tau, x.device)
        objective = AttackObjective([MultiExitView(net)], y, loss, mean_of_losses)
        oracle = Oracle(
            objective, estimator, Meter.of(len(x)), torch.arange(len(x)), keys.fold_in(1)
        )
        return attack(oracle, x, space, keys.fold_in(2)).max_loss_point


class _LastPoint(Estimator):
    """Backprop that counts evaluations as the value and gives finished rows a zero gradient.

    PGD keeps the point of highest value, which is therefore its last one. A row with zero gradient
    does not move. A row is finished when it is misclassified and has already taken `tau` steps
    while it was misclassified (early-stopped PGD, Zhang et al. 2020).
    """

    cost = 1
    gradient_cost = (1, 1)

    def __init__(self, rows: int, tau: int, device: torch.device) -> None:
        self._evaluations = 0
        self._steps_left = torch.full((rows,), tau, device=device)

    def value_and_grad(
        self, objective: ObjectiveFunction, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        (value, wrong), grad = Backprop().value_and_grad(objective, x, keys)
        finished = wrong & (self._steps_left == 0)
        self._steps_left = torch.where(wrong & ~finished, self._steps_left - 1, self._steps_left)
        self._evaluations += 1
        count = Evaluation(torch.full_like(value, self._evaluations), torch.zeros_like(wrong))
        return ValueAndGradient(count, torch.where(per_example(finished, x), 0.0, grad))

    def evaluate(
        self,
        objective: ObjectiveFunction,  # noqa: ARG002
        x: Tensor,
        keys: Keys,  # noqa: ARG002
    ) -> Evaluation:
        """Return an infinite value: the last point is kept whatever its loss is."""
        return Evaluation(
            x.new_full((len(x),), torch.inf), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        )
