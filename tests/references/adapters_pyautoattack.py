"""Adapters for the attacks of AutoAttack, from the package pyautoattack."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from .hosting import Adapter, Norm, imported_peer, to_points, with_parameter


def apgd(norm: Norm, loss: Literal["ce", "dlr"]) -> Adapter:
    """APGD of AutoAttack. Returns the last adversarial iterate, otherwise the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("pyautoattack", seed) as aa:
            attack = aa.autopgd_base.APGDAttack(
                with_parameter(net),
                n_iter=steps,
                n_restarts=restarts,
                norm=norm,
                eps=radius,
                loss=loss,
                seed=seed,
            )
            return to_points(attack.perturb(x, y))

    return run


def apgd_l1(
    net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
) -> Tensor:
    """APGD for L1 on cross-entropy, in balls of shrinking radius as AutoAttack runs it."""
    with imported_peer("pyautoattack", seed) as aa:
        attack = aa.autopgd_base.APGDAttack(
            with_parameter(net),
            n_iter=steps,
            n_restarts=restarts,
            norm="L1",
            eps=radius,
            loss="ce",
            seed=seed,
            use_largereps=True,
        )
        return to_points(attack.perturb(x, y))


def apgd_t(norm: Norm) -> Adapter:
    """APGD on the targeted DLR loss; the targets are the next classes of the clean logits."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("pyautoattack", seed) as aa:
            attack = aa.autopgd_base.APGDAttack_targeted(
                with_parameter(net),
                n_iter=steps,
                norm=norm,
                eps=radius,
                n_target_classes=targets,
                seed=seed,
            )
            return to_points(attack.perturb(x, y))

    return run


def fab(norm: Norm) -> Adapter:
    """FAB over all classes at once. Returns points inside the radius, otherwise the clean image."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, restarts: int
    ) -> Tensor:
        with imported_peer("pyautoattack", seed) as aa:
            attack = aa.fab_pt.FABAttack_PT(
                with_parameter(net),
                norm=norm,
                n_restarts=restarts,
                n_iter=steps,
                eps=radius,
                seed=seed,
            )
            return to_points(attack.perturb(x, y))

    return run


def fab_t(norm: Norm) -> Adapter:
    """FAB towards one target at a time.

    Returns points inside the radius, otherwise the clean image.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, targets: int
    ) -> Tensor:
        with imported_peer("pyautoattack", seed) as aa:
            attack = aa.fab_pt.FABAttack_PT(
                with_parameter(net),
                norm=norm,
                n_iter=steps,
                eps=radius,
                seed=seed,
                targeted=True,
                n_target_classes=targets,
            )
            return to_points(attack.perturb(x, y))

    return run


def square(norm: Norm) -> Adapter:
    """Square attack on the margin loss.

    `rescaled` fits the schedule of square sizes to the number of queries.
    """

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
        with imported_peer("pyautoattack", seed) as aa:
            attack = aa.square.SquareAttack(
                with_parameter(net),
                norm=norm,
                n_queries=queries,
                eps=radius,
                seed=seed,
                resc_schedule=rescaled,
            )
            return to_points(attack.perturb(x, y))

    return run


def standard(norm: Norm) -> Adapter:
    """AutoAttack, version standard: APGD-CE, APGD-T, FAB-T, Square."""

    def run(net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int) -> Tensor:
        with imported_peer("pyautoattack", seed) as aa:
            suite = aa.AutoAttack(
                with_parameter(net), norm=norm, eps=radius, seed=seed, version="standard"
            )
            return to_points(suite.run_standard_evaluation(x, y, batch_size=len(x))[0])

    return run
