"""The computational cost of inference up to each exit."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def multiply_adds(net: nn.Module, example: Tensor) -> tuple[int, ...]:
    """Return the multiply-adds per example until each exit has its logits.

    The cost of exit i includes the heads of exits 1 .. i-1. Convolutions, matrix products and
    attention are counted; norms, activations and pooling are not. On the meta device nothing is
    computed and the count is the same. The mean cost of a dynamic inference is the mean over the
    exits that its examples took.

    Args:
        net: A network with the output [N, C] or a list of [N, C].
        example: An input [N, ...].

    Raises:
        ValueError: The logits of an exit are not the output of a module.
    """
    # Torch has an entry for the cost of attention on other devices, but not for the CPU's kernel.
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={attention: _attention_operations})
    outputs: list[tuple[Tensor, int]] = []  # module outputs and the operations done by then

    def record(module: nn.Module, inputs: object, out: object) -> None:  # noqa: ARG001
        if isinstance(out, Tensor) and out.ndim == 2:
            outputs.append((out, counter.get_total_flops()))

    probe = copy.deepcopy(net).eval()  # the hooks are discarded with the copy
    for module in probe.modules():
        module.register_forward_hook(record)
    # With gradients enabled, torch's transformer layers do not use their fused kernel, which the
    # counter cannot see.
    with torch.enable_grad(), counter:
        out = probe(example.detach().requires_grad_())
    exits = [out] if isinstance(out, Tensor) else list(out)
    return tuple(
        _cost(k, logits, outputs) // (2 * len(example)) for k, logits in enumerate(exits, start=1)
    )


def _attention_operations(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    *rest: object,  # noqa: ARG001
    **options: object,  # noqa: ARG001
) -> int:
    """Count Q K^T and weights times V, two operations per multiply-add.

    The shapes are [N, heads, tokens, d].
    """
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])


def _cost(number: int, logits: Tensor, outputs: list[tuple[Tensor, int]]) -> int:
    """Return the operations that were done when a module first returned these logits."""
    done = next((operations for out, operations in outputs if out is logits), None)
    if done is None:
        raise ValueError(
            f"the logits of exit {number} are not the output of a module, so their cost cannot be "
            "measured. Make the head of this exit a module."
        )
    return done
