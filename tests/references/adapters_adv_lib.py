"""Adapters for the attacks of adv-lib."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .hosting import ORDER, Adapter, Norm, imported_peer, to_points, with_parameter


def pgd_linf(
    net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
) -> Tensor:
    """PGD on cross-entropy from a uniform start.

    Returns the last adversarial iterate, otherwise the clean image.
    """
    with imported_peer("adv-lib", seed) as al:
        return to_points(
            al.pgd_linf(with_parameter(net), x, y, radius, steps=steps, relative_step_size=step)
        )


def apgd(norm: Norm, loss: Literal["ce", "dlr"]) -> Adapter:
    """APGD. Returns the last adversarial iterate, otherwise the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("adv-lib", seed) as al:
            return to_points(
                al.apgd(
                    with_parameter(net),
                    x,
                    y,
                    radius,
                    ORDER[norm],
                    n_iter=steps,
                    n_restarts=restarts,
                    loss_function=loss,
                )
            )

    return run


def apgd_t(norm: Norm) -> Adapter:
    """APGD on the targeted DLR loss.

    It ignores the labels: the targets are the classes that follow the clean prediction.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("adv-lib", seed) as al:
            return to_points(
                al.apgd_targeted(
                    with_parameter(net),
                    x,
                    y,
                    radius,
                    ORDER[norm],
                    n_iter=steps,
                    num_targets=targets,
                )
            )

    return run


def fab(norm: Norm) -> Adapter:
    """FAB over all classes at once; the radius is only used for random restarts."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("adv-lib", seed) as al:
            return to_points(
                al.fab(
                    with_parameter(net),
                    x,
                    y,
                    ORDER[norm],
                    n_iter=steps,
                    ε=radius,
                    restarts=restarts,
                )
            )

    return run


def fab_t(norm: Norm) -> Adapter:
    """FAB towards one target at a time; the radius is only used for random restarts."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("adv-lib", seed) as al:
            return to_points(
                al.fab(
                    with_parameter(net),
                    x,
                    y,
                    ORDER[norm],
                    n_iter=steps,
                    ε=radius,
                    restarts=targets,
                    targeted_restarts=True,
                )
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
    """CW in L2; it minimizes the norm, so the radius is not used."""
    with imported_peer("adv-lib", seed) as al:
        return to_points(
            al.carlini_wagner_l2(
                with_parameter(net),
                x,
                y,
                binary_search_steps=searches,
                max_iterations=steps,
                learning_rate=rate,
            )
        )


def fmn(norm: Norm) -> Adapter:
    """Fast minimum norm (FMN); the radius is not used."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int
    ) -> Tensor:
        with imported_peer("adv-lib", seed) as al:
            return to_points(al.fmn(with_parameter(net), x, y, norm=ORDER[norm], steps=steps))

    return run
