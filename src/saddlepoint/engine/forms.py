"""Equal forms of a net: folded batch normalization and the memory layout.

A form counts as equal if its outputs and input gradients on an example differ from those of the net
in double precision by at most 1e-4, relative to their norms, or by at most twice the difference of
the net itself: where a ReLU is almost zero, rounding alone decides whether it has a gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.engine.folding import folded, has_hooks
from saddlepoint.phrases import count

PLAIN = "plain"
FOLDED = "folded"
CHANNELS_LAST = "folded, channels-last"
COMPILED = "folded, compiled"

_TOLERANCE = 1e-4  # relative difference of outputs and of input gradients


@dataclass(frozen=True)
class Prepared:
    """A net for attacks, and why it has this form."""

    net: nn.Module  # a copy with frozen parameters
    choice: str  # "plain", "folded", "folded, channels-last" or "folded, compiled"
    reason: str  # part of a sentence
    seconds: Mapping[str, float]  # CPU time of a pass of the example, by form; empty: not measured


class ChannelsLast(nn.Module):
    """A net that receives its images with channels last."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.contiguous(memory_format=torch.channels_last))
        return out


def equal_form(net: nn.Module, example: Tensor, *, channels_last: bool = False) -> Prepared:
    """A copy of a net with folded batch normalization, if outputs and gradients stay equal.

    Nothing is timed: the result depends on the net and the example alone, so every process that
    prepares the same net gets the same form.

    Args:
        net: a net in eval mode, from images [N, ...] to logits [N, C]. It is not changed.
        example: images as the net will see them, [N, ...].
        channels_last: also change the memory layout of images [N, C, H, W]; default False.

    Returns:
        The folded net, or the net itself with the reason why it has no other form.
    """
    modules = list(net.modules())
    if any(layer.training for layer in modules):
        return Prepared(net, PLAIN, "the net is in training mode", {})
    if any(map(has_hooks, modules)):
        return Prepared(net, PLAIN, "the net has hooks", {})
    try:
        other, layers = folded(copy.deepcopy(net).requires_grad_(False))
        if not layers:
            return Prepared(net, PLAIN, "there is no batch normalization to fold", {})
        choice = FOLDED
        if channels_last and example.ndim == 4:
            choice, other = CHANNELS_LAST, ChannelsLast(other)
        worst = differences(net, {choice: other}, example)
    except (
        Exception
    ) as error:  # code of the user that cannot be copied, traced or run in another form
        return Prepared(net, PLAIN, f"a copy raised {type(error).__name__}", {})
    if choice in worst:
        return Prepared(net, PLAIN, f"a folded copy differs by {worst[choice]:.1g}", {})
    return Prepared(other, choice, f"{count(layers, 'layer')} folded", {})


def differences(
    net: nn.Module, forms: Mapping[str, nn.Module], example: Tensor
) -> dict[str, float]:
    """The relative difference of each form that is not equal to the net on the example."""
    exact = _exact_pass(net, example)
    own = [_difference(*pair) for pair in zip(one_pass(net, example), exact, strict=True)]
    allowed = [max(_TOLERANCE, 2 * error) for error in own]
    different = {}
    for name, form in forms.items():
        errors = [_difference(*pair) for pair in zip(one_pass(form, example), exact, strict=True)]
        if not all(error <= most for error, most in zip(errors, allowed, strict=True)):
            different[name] = max(errors)
    return different


def one_pass(net: nn.Module, example: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and input gradients of a fixed combination of them."""
    x = example.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = net(x)
        weights = torch.arange(logits.shape[-1], device=logits.device).to(logits).cos()
        (grad,) = torch.autograd.grad((logits * weights).sum(), x)
    return logits.detach(), grad


def _exact_pass(net: nn.Module, example: Tensor) -> tuple[Tensor, Tensor]:
    """The same in double precision; in single precision if the net does not support that."""
    try:
        return one_pass(copy.deepcopy(net).double(), example.double())
    except RuntimeError:  # a tensor of the net that `double` does not reach
        return one_pass(net, example)


def _difference(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||; infinite if a is not finite."""
    error = float((a - b).norm() / b.norm().clamp(min=torch.finfo(b.dtype).tiny))
    return error if error == error else float("inf")
