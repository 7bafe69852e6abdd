"""What a network shows while it is trained: its logits, or those of every exit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View


class MultiExitView(Defense):
    """One view per exit of a network that answers with a list of logits, one view of any other; answered with their mean.

    The mean of logits over all exits is the inference that an average attack is matched to.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.static = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        exits = exits_of(self.net, x)
        if len(exits) == 1:
            return Trace((View("final", exits[0]),))
        return Trace(tuple(View(f"exit/{k}", logits) for k, logits in enumerate(exits, start=1)))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.logits.mean(0)


class Stacked(nn.Module):
    """The logits of all exits as one tensor [L, N, C]: losses then are [L, N]."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(exits_of(self.net, x))


def exits_of(net: nn.Module, x: Tensor) -> list[Tensor]:
    """[N, C] per exit, of networks that answer with [N, C], with [L, N, C] or with a list."""
    out = net(x)
    if isinstance(out, Tensor):
        return list(out.unbind()) if out.ndim == 3 else [out]
    return list(out)
