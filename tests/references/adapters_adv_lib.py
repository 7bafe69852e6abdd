"""The attacks of adv-lib."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .hosting import ORDER, Adapter, Norm, anchored, peer, points


def pgd_linf(
    net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
) -> Tensor:
    """PGD on cross-entropy from a uniform start. Returns the last adversarial iterate, else the clean image."""
    with peer("adv-lib", seed) as al:
        return points(
            al.pgd_linf(anchored(net), x, y, radius, steps=steps, relative_step_size=step)
        )


def apgd(norm: Norm, loss: Literal["ce", "dlr"]) -> Adapter:
    """APGD. Returns the last adversarial iterate, else the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with peer("adv-lib", seed) as al:
            return points(
                al.apgd(
                    anchored(net),
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
    """APGD on the targeted DLR loss. It ignores the labels: targets are the runners-up of the clean prediction."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with peer("adv-lib", seed) as al:
            return points(
                al.apgd_targeted(
                    anchored(net), x, y, radius, ORDER[norm], n_iter=steps, num_targets=targets
                )
            )

    return run


def fab(norm: Norm) -> Adapter:
    """FAB over all classes at once; the radius only sets the random restarts."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with peer("adv-lib", seed) as al:
            return points(
                al.fab(anchored(net), x, y, ORDER[norm], n_iter=steps, ε=radius, restarts=restarts)
            )

    return run


def fab_t(norm: Norm) -> Adapter:
    """FAB towards one target at a time; the radius only sets the random restarts."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with peer("adv-lib", seed) as al:
            return points(
                al.fab(
                    anchored(net),
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
    """CW in L2; the radius is not used, it minimizes the norm."""
    with peer("adv-lib", seed) as al:
        return points(
            al.carlini_wagner_l2(
                anchored(net),
                x,
                y,
                binary_search_steps=searches,
                max_iterations=steps,
                learning_rate=rate,
            )
        )


def fmn(norm: Norm) -> Adapter:
    """Fast minimum norm; the radius is not used."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int
    ) -> Tensor:
        with peer("adv-lib", seed) as al:
            return points(al.fmn(anchored(net), x, y, norm=ORDER[norm], steps=steps))

    return run
