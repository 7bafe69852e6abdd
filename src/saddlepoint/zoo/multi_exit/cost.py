"""What an answer costs at each exit."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(net: nn.Module, example: Tensor) -> tuple[int, ...]:
    """Multiply-adds per example until each exit has answered; whoever reaches exit i has also asked exits 1 .. i-1.

    Those of convolutions, matrix products and attention are counted, as they are executed; norms, activations and pooling are not.
    On the meta device nothing is computed and the count is the same. The mean cost of a dynamic inference is the mean over the
    exits that its examples took.
    """
    # Torch knows what attention costs on other devices, but has no entry for the CPU's own kernel.
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={attention: _attention_operations})
    answered: list[tuple[Tensor, int]] = []

    def note(module: nn.Module, given: object, out: object) -> None:  # noqa: ARG001
        if isinstance(out, Tensor) and out.ndim == 2:
            answered.append((out, counter.get_total_flops()))

    probe = copy.deepcopy(net).eval()  # the hooks go where the copy goes
    for module in probe.modules():
        module.register_forward_hook(note)
    # With a gradient to follow, torch's transformer layers do not take a fused path that nobody can look into.
    with torch.enable_grad(), counter:
        out = probe(example.detach().requires_grad_())
    exits = [out] if isinstance(out, Tensor) else list(out)
    return tuple(
        _cost(k, logits, answered) // (2 * len(example)) for k, logits in enumerate(exits, start=1)
    )


def _attention_operations(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    *rest: object,  # noqa: ARG001
    **options: object,  # noqa: ARG001
) -> int:
    """Two per multiply-add of Q K^T and of the weights times V, from the shapes [N, heads, tokens, d]."""
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


def _cost(number: int, logits: Tensor, answered: list[tuple[Tensor, int]]) -> int:
    """Operations done when a module first gave these very logits."""
    done = next((operations for given, operations in answered if given is logits), None)
    if done is None:
        raise ValueError(
            f"the logits of exit {number} come from no module, so nobody can say when they are ready. Make its head one."
        )
    return done
