"""Networks with one or several exits under one interface, as training needs them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View


class MultiExitView(Defense):
    """A network as a defense with one view per exit; the answer is the mean of their logits.

    A network with one exit has the single view "final". The mean of the logits over all exits is
    the inference that matches the average attack.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        """Return one view per exit."""
        exits = exit_logits(self.net, x)
        if len(exits) == 1:
            return Trace((View("final", exits[0]),))
        return Trace(tuple(View(f"exit/{k}", logits) for k, logits in enumerate(exits, start=1)))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        """Return the mean of the logits over all exits, [N, C]."""
        return trace.logits.mean(0)


class StackedExits(nn.Module):
    """A network that outputs the logits of all exits as one tensor [L, N, C].

    Losses of this output are [L, N].
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(exit_logits(self.net, x))


def exit_logits(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the logits [N, C] of every exit.

    Args:
        net: A network with the output [N, C], [L, N, C] or a list of [N, C].
        x: Examples [N, ...].
    """
    out = net(x)
    if isinstance(out, Tensor):
        return list(out.unbind()) if out.ndim == 3 else [out]
    return list(out)
