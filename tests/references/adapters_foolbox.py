"""Adapters for the attacks of foolbox."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .hosting import Adapter, Norm, imported_peer, to_points, with_parameter


def pgd(norm: Norm) -> Adapter:
    """PGD on cross-entropy from a random start; `step` is a fraction of the radius.

    Returns the last iterate.
    """

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
    ) -> Tensor:
        with imported_peer("foolbox", seed) as fb:
            attack = {"Linf": fb.attacks.LinfPGD, "L2": fb.attacks.L2PGD}[norm](
                steps=steps, rel_stepsize=step
            )
            return run_attack(fb, attack, net, x, y, radius)

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
    with imported_peer("foolbox", seed) as fb:
        attack = fb.attacks.L2CarliniWagnerAttack(
            binary_search_steps=searches, steps=steps, stepsize=rate
        )
        return run_attack(fb, attack, net, x, y, None)


def fmn(norm: Norm) -> Adapter:
    """Fast minimum norm (FMN); the radius is not used."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int
    ) -> Tensor:
        with imported_peer("foolbox", seed) as fb:
            attack = {"Linf": fb.attacks.LInfFMNAttack, "L2": fb.attacks.L2FMNAttack}[norm](
                steps=steps
            )
            return run_attack(fb, attack, net, x, y, None)

    return run


def run_attack(
    fb: Any, attack: Any, net: nn.Module, x: Tensor, y: Tensor, radius: float | None
) -> Tensor:
    """Run an attack: raw points without a radius, clipped points with one.

    For PGD both are the same.
    """
    model = fb.PyTorchModel(with_parameter(net), bounds=(0, 1), device="cpu")
    raw, clipped, _ = attack(model, x, y, epsilons=radius)
    return to_points(raw if radius is None else clipped)
