"""How near to a fixed point every state is, and what to say where it is far."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from saddlepoint.zoo.deq import DEQ, EarlyState, FinalState, MeanState

FAR = 0.1  # a relative residual that no tolerance explains


def label(name: str) -> str:
    """z3, ensemble, final: the states as the paper writes them."""
    if name == MeanState.name:
        return "ensemble"
    return "z" + name.partition("/")[2] if name.startswith("solve/") else name


def residuals(defense: DEQ, x: Tensor, batch: int = 100) -> dict[str, Tensor]:
    """[N] ||f(z; x) - z|| / ||f(z; x)|| of every state that the defense may answer with, by the name of its view (Sec. 6.1)."""
    parts = [_residuals(defense, part) for part in torch.split(x, batch)]
    return {name: torch.cat([part[name] for part in parts]).double().cpu() for name in parts[0]}


@torch.no_grad()
def _residuals(defense: DEQ, x: Tensor) -> dict[str, Tensor]:
    net = defense.net
    count = defense.method.steps
    u = net.inject(x)
    numbers = range(1, count + 1)
    weights = (1 / (count + 1),) * count
    solution = defense.method(
        lambda z, rows: net.cell(z, u[rows]), net.start(u), keep=numbers, weights=weights
    )
    final = defense.after(net.cell, solution.best, u)
    assert solution.blend is not None
    states = {EarlyState(n).name: solution.states[n] for n in numbers}
    states |= {MeanState.name: solution.blend + final / (count + 1), FinalState.name: final}
    return {name: _residual(z, net.cell(z, u)) for name, z in states.items()}


def _residual(z: Tensor, f: Tensor) -> Tensor:  # [N]
    gap, size = ((v.flatten(1)).norm(dim=1) for v in (f - z, f))
    ratio: Tensor = gap / size.clamp(min=torch.finfo(f.dtype).tiny)
    return ratio.nan_to_num(nan=torch.inf)


def ended(defense: DEQ, x: Tensor, batch: int = 100) -> Tensor:
    """[N] the relative residual of the state at which each solve ended, from which the final one is made."""
    return (
        torch.cat([defense.settled(part).residual for part in torch.split(x, batch)]).double().cpu()
    )


def unsettled(name: str, found: Mapping[str, Tensor]) -> list[str]:
    """What to say above the numbers: `found` has the residuals [N] at which the solver ended, on each kind of images."""
    told = []
    for kind, residual in found.items():
        share = float((residual > FAR).double().mean())
        if share:
            told.append(
                f"{name}: no fixed point on {100 * share:.0f} % of the {kind} images, where the solver ends with a relative "
                f"residual above {FAR:g} (median of all {float(residual.median()):.2g}). What is answered there is no equilibrium, "
                "and the exact gradient is not its slope."
            )
    return told
