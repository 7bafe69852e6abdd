"""The solver and the exact gradient of the released code of Yang et al. 2022, written out.

One example at a time, in the low-rank form B = -I + sum_k p_k q_k^T of Broyden's good method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.zoo.nets.equilibrium import Equilibrium


class Released(NamedTuple):
    """The prediction and the input gradient."""

    logits: Tensor  # [C]
    grad: Tensor  # the shape of the image


def lowest_residual_state(f: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """The state [D] with the lowest ||f(z) - z|| / ||f(z)|| among `steps` full Broyden steps."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def inverse(g: Tensor) -> Tensor:  # B g
        return -g + sum((p * (q @ g) for p, q in pairs), torch.zeros_like(g))

    def from_left(step: Tensor) -> Tensor:  # step^T B
        return -step + sum((q * (p @ step) for p, q in pairs), torch.zeros_like(step))

    z = start
    g = f(z) - z
    best = z
    least = torch.inf
    for _ in range(steps):
        step = -inverse(g)
        z = z + step
        image = f(z)
        change = image - z - g
        g = image - z
        residual = float(g.norm() / image.norm())
        if residual < least:
            least = residual
            best = z
        left = from_left(step)
        pairs.append(((step - inverse(change)) / (left @ change), left))
    return best


def released(
    net: Equilibrium, image: Tensor, cotangent: Tensor, forward: int, backward: int
) -> Released:
    """Predict from f(z) of the best state z, and differentiate as the released code does.

    A hook replaces the cotangent c of f(z) by the solution y of y = (df/dz)^T y + c, which then
    passes through f once.

    Args:
        net: the equilibrium network.
        image: one image.
        cotangent: of the logits, [C].
        forward: solver steps of the forward pass.
        backward: solver steps of the backward pass.
    """
    x = image[None].clone().requires_grad_()
    u = net.inject(x)
    start = net.start(u)[0].detach()
    with torch.no_grad():
        z = lowest_residual_state(lambda z: net.cell(z[None], u)[0], start, forward)
    z = z.requires_grad_()
    final = net.cell(z[None], u)[0]
    top = final.detach().requires_grad_()
    logits = net.head(top[None])[0]
    (c,) = torch.autograd.grad(logits, top, cotangent)

    def backward_map(y: Tensor) -> Tensor:
        product: Tensor = torch.autograd.grad(final, z, y, retain_graph=True)[0]
        return product + c

    y = lowest_residual_state(backward_map, torch.zeros_like(start), backward)
    return Released(logits.detach(), torch.autograd.grad(final, x, y)[0][0])
