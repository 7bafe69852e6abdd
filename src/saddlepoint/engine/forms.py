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

# Layers that are slower with channels last on the CPU.
_NORMALIZED = (
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.InstanceNorm2d,
    nn.LayerNorm,
    nn.LocalResponseNorm,
)
_CHANNELS = 8  # fewer output channels than this do not fill the vector units
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


def suits_channels_last(net: nn.Module) -> bool:
    """Whether a folded net is expected to be faster with channels last.

    It has ordinary convolutions of images, and no normalization is left: those of other kinds, and
    convolutions with groups, are slower in this layout on the CPU.
    """
    layers = list(net.modules())
    images = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    ordinary = all(layer.groups == 1 and layer.out_channels >= _CHANNELS for layer in images)
    return bool(images) and ordinary and not any(isinstance(one, _NORMALIZED) for one in layers)


def equal_form(net: nn.Module, example: Tensor, *, channels_last: bool = False) -> Prepared:
    """A copy of a net with folded batch normalization, if outputs and gradients stay equal.

    Images [N, C, H, W] on the CPU are stored with channels last if that suits the folded net.
    Nothing is timed: the result depends on the net and the example alone, so every process that
    prepares the same net gets the same form.

    Args:
        net: a net in eval mode, from images [N, ...] to logits [N, C]. It is not changed.
        example: images as the net will see them, [N, ...].
        channels_last: use this layout also where it may be slower; default False.

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
        forms = {FOLDED: other}
        suits = example.device.type == "cpu" and suits_channels_last(other)
        if example.ndim == 4 and (channels_last or suits):
            forms = {CHANNELS_LAST: ChannelsLast(copy.deepcopy(other)), **forms}
        for choice, form in forms.items():
            worst = differences(net, {choice: form}, example)
            if not worst:
                return Prepared(form, choice, f"{count(layers, 'layer')} folded", {})
    except (
        Exception
    ) as error:  # code of the user that cannot be copied, traced or run in another form
        return Prepared(net, PLAIN, f"a copy raised {type(error).__name__}", {})
    return Prepared(net, PLAIN, f"a folded copy differs by {worst[FOLDED]:.1g}", {})


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
