"""Adapters for the attacks of torchattacks."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .hosting import Adapter, Norm, imported_peer, to_points, with_parameter


def pgd(norm: Norm) -> Adapter:
    """PGD on cross-entropy from a random start; `step` is a fraction of the radius.

    Returns the last iterate.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = {"Linf": ta.PGD, "L2": ta.PGDL2}[norm]
            return to_points(
                attack(with_parameter(net), eps=radius, alpha=step * radius, steps=steps)(x, y)
            )

    return run


def apgd(norm: Norm, loss: Literal["ce", "dlr"]) -> Adapter:
    """APGD. Returns the last adversarial iterate, otherwise the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = ta.APGD(
                with_parameter(net),
                norm=norm,
                eps=radius,
                steps=steps,
                n_restarts=restarts,
                seed=seed,
                loss=loss,
            )
            return to_points(attack(x, y))

    return run


def apgd_t(norm: Norm) -> Adapter:
    """APGD on the targeted DLR loss."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = ta.APGDT(
                with_parameter(net),
                norm=norm,
                eps=radius,
                steps=steps,
                seed=seed,
                n_classes=targets + 1,
            )
            return to_points(attack(x, y))

    return run


def fab(norm: Norm) -> Adapter:
    """FAB over all classes at once. Returns points inside the radius, otherwise the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = ta.FAB(
                with_parameter(net),
                norm=norm,
                eps=radius,
                steps=steps,
                n_restarts=restarts,
                seed=seed,
            )
            return to_points(attack(x, y))

    return run


def fab_t(norm: Norm) -> Adapter:
    """FAB towards one target at a time.

    Returns points inside the radius, otherwise the clean image.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = ta.FAB(
                with_parameter(net),
                norm=norm,
                eps=radius,
                steps=steps,
                seed=seed,
                multi_targeted=True,
                n_classes=targets + 1,
            )
            return to_points(attack(x, y))

    return run


def square(norm: Norm) -> Adapter:
    """Square attack on the margin loss."""

    def run(
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        radius: float,
        *,
        seed: int,
        queries: int,
        rescaled: bool,
    ) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            attack = ta.Square(
                with_parameter(net),
                norm=norm,
                eps=radius,
                n_queries=queries,
                seed=seed,
                resc_schedule=rescaled,
            )
            return to_points(attack(x, y))

    return run


def standard(norm: Norm) -> Adapter:
    """AutoAttack, version standard.

    torchattacks uses 10 steps for APGD, APGD-T and FAB-T.
    """

    def run(net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int) -> Tensor:
        with imported_peer("torchattacks", seed) as ta:
            return to_points(
                ta.AutoAttack(with_parameter(net), norm=norm, eps=radius, seed=seed)(x, y)
            )

    return run


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
    """CW in L2 with the constant fixed at 1.

    torchattacks does not search for the constant, so it gets `searches * steps` steps in one run.
    """
    with imported_peer("torchattacks", seed) as ta:
        return to_points(ta.CW(with_parameter(net), c=1, steps=searches * steps, lr=rate)(x, y))
