"""The attacks of foolbox."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .hosting import Adapter, Norm, anchored, peer, points


def pgd(norm: Norm) -> Adapter:
    """PGD on cross-entropy from a random start; `step` is a fraction of the radius. Returns the last iterate."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int, step: float
    ) -> Tensor:
        with peer("foolbox", seed) as fb:
            attack = {"Linf": fb.attacks.LinfPGD, "L2": fb.attacks.L2PGD}[norm](
                steps=steps, rel_stepsize=step
            )
            return returned(fb, attack, net, x, y, radius)

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
    with peer("foolbox", seed) as fb:
        attack = fb.attacks.L2CarliniWagnerAttack(
            binary_search_steps=searches, steps=steps, stepsize=rate
        )
        return returned(fb, attack, net, x, y, None)


def fmn(norm: Norm) -> Adapter:
    """Fast minimum norm; the radius is not used."""

    def run(
        net: nn.Module, x: Tensor, y: Tensor, radius: float, *, seed: int, steps: int
    ) -> Tensor:
        with peer("foolbox", seed) as fb:
            attack = {"Linf": fb.attacks.LInfFMNAttack, "L2": fb.attacks.L2FMNAttack}[norm](
                steps=steps
            )
            return returned(fb, attack, net, x, y, None)

    return run


def returned(
    fb: Any, attack: Any, net: nn.Module, x: Tensor, y: Tensor, radius: float | None
) -> Tensor:
    """Foolbox's raw points; with a radius its own clipped ones, which for PGD are the same."""
    model = fb.PyTorchModel(anchored(net), bounds=(0, 1), device="cpu")
    raw, clipped, _ = attack(model, x, y, epsilons=radius)
    return points(raw if radius is None else clipped)
