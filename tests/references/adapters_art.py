"""Adapters for the attacks of the Adversarial Robustness Toolbox (ART)."""

from __future__ import annotations

import importlib
import math
from typing import Any, Literal

from torch import Tensor, nn

from .hosting import ORDER, Adapter, Norm, imported_peer, to_points, with_parameter


def pgd(norm: Norm) -> Adapter:
    """PGD on cross-entropy from a random start; `step` is a fraction of the radius.

    Returns the last iterate.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
    ) -> Tensor:
        with imported_peer("adversarial-robustness-toolbox", seed):
            attack = evasion().ProjectedGradientDescent(
                classifier(net, x),
                norm=ORDER[norm],
                eps=radius,
                eps_step=step * radius,
                max_iter=steps,
                num_random_init=1,
                batch_size=len(x),
                verbose=False,
            )
            return to_points(attack.generate(x.numpy().copy(), y.numpy()))

    return run


def apgd(norm: Norm, loss: Literal["cross_entropy", "difference_logits_ratio"]) -> Adapter:
    """APGD with the initial step size of the paper, twice the radius."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("adversarial-robustness-toolbox", seed):
            attack = evasion().AutoProjectedGradientDescent(
                classifier(net, x),
                norm=ORDER[norm],
                eps=radius,
                eps_step=2 * radius,
                max_iter=steps,
                nb_random_init=restarts,
                batch_size=len(x),
                loss_type=loss,
                verbose=False,
            )
            return to_points(attack.generate(x.numpy().copy(), y.numpy()))

    return run


def square_linf(
    net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, queries: int, rescaled: bool
) -> Tensor:
    """Square attack.

    ART always fits the schedule of square sizes to the number of queries; `rescaled` is ignored.
    """
    with imported_peer("adversarial-robustness-toolbox", seed):
        attack = evasion().SquareAttack(
            classifier(net, x),
            norm=math.inf,
            eps=radius,
            max_iter=queries,
            batch_size=len(x),
            verbose=False,
        )
        return to_points(attack.generate(x.numpy().copy(), y.numpy()))


def cw_l2(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    *,
    seed: int,
    searches: int,
    steps: int,
    rate: float,
) -> Tensor:
    """CW in L2 with ART's line search in every step.

    It minimizes the norm, so the radius is not used.
    """
    with imported_peer("adversarial-robustness-toolbox", seed):
        attack = evasion().CarliniL2Method(
            classifier(net, x),
            learning_rate=rate,
            binary_search_steps=searches,
            max_iter=steps,
            batch_size=len(x),
            verbose=False,
        )
        return to_points(attack.generate(x.numpy().copy(), y.numpy()))


def evasion() -> Any:
    """The module of ART's evasion attacks."""
    return importlib.import_module("art.attacks.evasion")


def classifier(net: nn.Module, x: Tensor) -> Any:
    """The net as an ART classifier."""
    return importlib.import_module("art.estimators.classification").PyTorchClassifier(
        with_parameter(net),
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=net(x[:1]).shape[1],
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
