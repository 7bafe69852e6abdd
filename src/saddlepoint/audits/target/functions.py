"""Callables in the form that attacks without gradients need: from images to a tensor of scores.

Arrays and lists are converted to tensors, logits are selected from other outputs, and one number
per image becomes the logits of two classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from saddlepoint.audits.target.admission import TargetError, explain_errors
from saddlepoint.audits.target.logits import (
    check_binary,
    finite_scores,
    float_scores,
    has_negative_infinity,
    is_binary,
    logits_key,
    needs_conversion,
)
from saddlepoint.audits.target.notes import (
    array_note,
    binary_note,
    converted_note,
    finite_note,
    selected_note,
)
from saddlepoint.audits.verdict import Symptom
from saddlepoint.defenses import output_entries, two_classes

# Code that says how one number per image is read.
_BINARY = (
    "lambda x: saddlepoint.defenses.two_classes(f(x))",
    "lambda x: saddlepoint.defenses.two_classes(torch.logit(f(x)))",
)


class StandardFunction(NamedTuple):
    """A callable from images to scores or labels, and what had to be done to get one."""

    function: Callable[[Tensor], Any]
    notes: tuple[Symptom, ...] = ()


@dataclass(frozen=True)
class ConvertedFunction:
    """A callable whose outputs are converted to a tensor of scores [N, C], or of labels [N].

    Args:
        function: the callable.
        key: the logits inside its output; None: the output is the logits.
        binary: outputs are one logit per image.
        convert: outputs are scores of integers or 8-bit numbers; they get the type of the images.
    """

    function: Callable[[Tensor], Any]
    key: str | int | None = None
    binary: bool = False
    convert: bool = False

    def __call__(self, x: Tensor) -> Any:
        out = self.function(x)
        if self.key is not None:
            out = output_entries(out)[self.key]
        out = as_tensor(out, x)
        if self.convert:
            out = float_scores(out, x.dtype)
        return finite_scores(two_classes(out) if self.binary else out)


def standard_function(
    function: Callable[[Tensor], Any], x: Tensor, classes: int
) -> StandardFunction:
    """The callable, converted if its outputs are no tensor of finite scores or labels.

    Args:
        function: from a batch of images, [N, ...], to scores or labels.
        x: a few images, [N, ...].
        classes: the number of classes that the labels show.

    Raises:
        TargetError: the callable raises an error, or its outputs may be several things.
    """
    with torch.no_grad(), explain_errors("callable", x):
        out = function(x.clone())
    notes = []
    key = None
    if not isinstance(out, Tensor | np.ndarray | list):
        key = logits_key(_tensors(out, x), len(x))
    if key is not None:
        notes.append(selected_note(out, key))
        out = output_entries(out)[key]
    converted = as_tensor(out, x)
    if converted is not out:
        notes.append(array_note(out))
    binary = is_binary(converted, len(x))
    if binary:
        check_binary(converted, classes, _BINARY)
        notes.append(binary_note(converted))
    convert = needs_conversion(converted, len(x))
    if convert:
        notes.append(converted_note(converted))
        converted = float_scores(converted, x.dtype)
    if has_negative_infinity(converted):
        notes.append(finite_note())
    if not notes:
        return StandardFunction(function)
    return StandardFunction(ConvertedFunction(function, key, binary, convert), tuple(notes))


def as_tensor(out: Any, x: Tensor) -> Any:
    """An array or a list of numbers as a tensor beside the images; other values unchanged.

    Floating-point numbers get the type of the images.

    Raises:
        TargetError: a list holds arrays or tensors, which may be exits.
    """
    if isinstance(out, list | tuple) and any(hasattr(one, "shape") for one in out):
        raise TargetError(
            f"the callable returns a {type(out).__name__} of {len(out)} arrays. A callable returns "
            "one array of scores [N, C], or labels [N]: return that of the exit that answers."
        )
    if not isinstance(out, np.ndarray | np.generic | list | tuple):
        return out
    array = np.asarray(out)
    if array.dtype.kind not in "fiu":
        return out
    tensor = torch.from_numpy(np.array(array)).to(x.device)
    return tensor.to(x.dtype) if tensor.is_floating_point() else tensor.long()


def _tensors(out: Any, x: Tensor) -> Any:
    """The same output with tensors for arrays, so that logits can be found in it."""
    entries = output_entries(out)
    return {key: as_tensor(value, x) for key, value in entries.items()} if entries else out
