"""Chooses the fastest of several equal forms of a net by a short measured trial."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from saddlepoint.engine.folding import folded
from saddlepoint.engine.forms import (
    CHANNELS_LAST,
    COMPILED,
    FOLDED,
    PLAIN,
    ChannelsLast,
    Prepared,
    differences,
    one_pass,
)
from saddlepoint.phrases import relative

_GAIN = 0.95  # of the time of the plain net: a smaller gain may be noise
_ROUNDS = 3


def prepare(net: nn.Module, example: Tensor, *, compiled: bool = False) -> Prepared:
    """A copy of a net with cheaper forward and backward passes, and equal outputs and gradients.

    Parameters are frozen. Batch normalization is folded into the layer before it, and the memory
    layout is chosen by the time that passes of the example take. Only forms that are equal on the
    example count (`saddlepoint.engine.forms`).

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
        forms[CHANNELS_LAST] = ChannelsLast(copy.deepcopy(other))
    if compiled:
        forms[COMPILED] = torch.compile(other)  # type: ignore[assignment]
    if len(forms) == 1:
        return Prepared(plain, PLAIN, "there is nothing to fold and no layout to choose", {})
    return _fastest(forms, example)


def _fastest(forms: Mapping[str, nn.Module], example: Tensor) -> Prepared:
    worst = differences(forms[PLAIN], forms, example)
    differing = [f"{name} differs by {error:.1g}" for name, error in worst.items()]
    equal = {name: form for name, form in forms.items() if name not in worst}
    times: dict[str, list[float]] = {name: [] for name in equal}
    for _ in range(_ROUNDS):  # alternately, so that other load affects all of them alike
        for name, form in equal.items():
            started = time.process_time()
            one_pass(form, example)
            times[name].append(time.process_time() - started)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    best = min(seconds, key=lambda name: seconds[name])
    if best == PLAIN or seconds[best] > _GAIN * seconds[PLAIN]:
        reason = ", ".join(["no equal form is faster by 5 %", *differing])
        return Prepared(forms[PLAIN], PLAIN, reason, seconds)
    ratio = seconds[best] / seconds[PLAIN]
    reason = ", ".join([f"{relative(ratio)} of the time of the plain net", *differing])
    return Prepared(equal[best], best, reason, seconds)
