"""Chooses the fastest of several equal forms of a net by a short measured trial."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saddlepoint.engine.folding import folded
from saddlepoint.phrases import relative

PLAIN = "plain"
FOLDED = "folded"
CHANNELS_LAST = "folded, channels-last"
COMPILED = "folded, compiled"

_TOLERANCE = 1e-4  # relative difference of outputs and of input gradients
_GAIN = 0.95  # of the time of the plain net: a smaller gain may be noise
_ROUNDS = 3


@dataclass(frozen=True)
class Prepared:
    """A net for attacks, and why it has this form."""

    net: nn.Module  # a copy with frozen parameters
    choice: str  # "plain", "folded", "folded, channels-last" or "folded, compiled"
    reason: str  # part of a sentence
    seconds: Mapping[
        str, float
    ]  # CPU time of a forward and a backward pass of the example, by form


def prepare(net: nn.Module, example: Tensor, *, compiled: bool = False) -> Prepared:
    """A copy of a net with cheaper forward and backward passes, and equal outputs and gradients.

    Parameters are frozen. Batch normalization is folded into the layer before it, and the memory
    layout is chosen by the time that passes of the example take. A form counts only if its outputs
    and input gradients on the example differ from those in double precision by at most 1e-4,
    relative to their norms, or by at most twice the difference of the plain net: where a ReLU is
    almost zero, rounding alone decides whether it has a gradient.

    Args:
        net: a net in eval mode, from images [N, ...] to logits [N, C]. It is not changed.
        example: images as the net will see them, [N, ...]: real ones, in a batch of usual size.
        compiled: also try `torch.compile`, which takes up to a minute; default False.

    Returns:
        The fastest form; the plain net if no form is faster by 5 %, or if they differ.
    """
    plain = copy.deepcopy(net).requires_grad_(False)
    if any(layer.training for layer in net.modules()):
        return Prepared(plain, PLAIN, "the net is in training mode", {})
    forms: dict[str, nn.Module] = {PLAIN: plain}
    other, count = folded(plain)
    if count:
        forms[FOLDED] = other
    if example.ndim == 4 and any(isinstance(layer, nn.Conv2d) for layer in other.modules()):
        last = copy.deepcopy(other).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        forms[CHANNELS_LAST] = _ChannelsLast(last)
    if compiled:
        forms[COMPILED] = torch.compile(other)  # type: ignore[assignment]
    if len(forms) == 1:
        return Prepared(plain, PLAIN, "there is nothing to fold and no layout to choose", {})
    return _fastest(forms, example)


class _ChannelsLast(nn.Module):
    """A net that receives its images with channels last."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.contiguous(memory_format=torch.channels_last))
        return out


def _fastest(forms: Mapping[str, nn.Module], example: Tensor) -> Prepared:
    exact = _exact_pass(forms[PLAIN], example)
    own = [_difference(*pair) for pair in zip(_pass(forms[PLAIN], example), exact, strict=True)]
    allowed = [max(_TOLERANCE, 2 * error) for error in own]
    equal: dict[str, nn.Module] = {}
    differing: list[str] = []
    for name, form in forms.items():
        errors = [_difference(*pair) for pair in zip(_pass(form, example), exact, strict=True)]
        if all(error <= most for error, most in zip(errors, allowed, strict=True)):
            equal[name] = form
        else:
            differing.append(f"{name} differs by {max(errors):.1g}")
    times: dict[str, list[float]] = {name: [] for name in equal}
    for _ in range(_ROUNDS):  # alternately, so that other load affects all of them alike
        for name, form in equal.items():
            started = time.process_time()
            _pass(form, example)
            times[name].append(time.process_time() - started)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    best = min(seconds, key=lambda name: seconds[name])
    if best == PLAIN or seconds[best] > _GAIN * seconds[PLAIN]:
        reason = ", ".join(["no equal form is faster by 5 %", *differing])
        return Prepared(forms[PLAIN], PLAIN, reason, seconds)
    ratio = seconds[best] / seconds[PLAIN]
    reason = ", ".join([f"{relative(ratio)} of the time of the plain net", *differing])
    return Prepared(equal[best], best, reason, seconds)


def _pass(net: nn.Module, example: Tensor) -> tuple[Tensor, Tensor]:
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
        return _pass(copy.deepcopy(net).double(), example.double())
    except RuntimeError:  # a tensor of the net that `double` does not reach
        return _pass(net, example)


def _difference(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||; infinite if a is not finite."""
    error = float((a - b).norm() / b.norm().clamp(min=torch.finfo(b.dtype).tiny))
    return error if error == error else float("inf")
